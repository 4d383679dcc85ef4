//! The effects of faults on the cluster of a chaos run.

use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams};
use rlt_api::FailureCause;
use rlt_api::status::{ConditionType, RLTrainingJobStatus};
use rlt_cluster::Cluster;
use serde_json::Value;

use super::manifests::{NAME, values};
use super::plan::{Fault, RANKS_PER_WORKER};
use super::site::{Site, num_failures, within};
use crate::chart::{RELEASE, kubectl, upgrade};
use crate::container::launcher;
use crate::processes::{kill, kill_rank, of_pod, read};
use crate::test_namespace::reason;

/// The operator's role in the namespace of the job, and its binding.
const ROLES: [&str; 2] = ["rolebinding/rl-operator-jobs", "role/rl-operator-jobs"];
/// Objects that are deleted.
const CONFIG_MAP: &str = "chaos-manifest";
const CLAIM: &str = "chaos-storage";
const SECRET: &str = "rl-operator-channel";
/// Reason of the condition and the Event while checkpoints are not saved.
const UNSAVED: &str = "CheckpointNotSaved";
/// Time that the record of a failure, in status and Events, may take before the next fault.
pub(super) const RECORD_TIME: Duration = Duration::from_secs(60);

/// An object by its kind, namespace and name.
#[derive(Debug)]
pub(super) struct Object {
    kind: &'static str,
    namespace: String,
    name: &'static str,
}

impl Object {
    /// UID of the present object; `None` if there is none of this name.
    pub(super) fn uid(&self, cluster: &Cluster) -> Option<String> {
        let Self { kind, namespace, name } = self;
        let uid = "jsonpath={.metadata.uid}";
        let uid = kubectl(cluster, &["get", kind, name, "-n", namespace, "--ignore-not-found", "-o", uid]);
        Some(uid).filter(|uid| !uid.is_empty())
    }
}

/// Reads the manifests of [`ROLES`], as they are created again.
pub(super) fn read_roles(cluster: &Cluster, namespace: &str) -> Vec<Value> {
    let read = |name: &&str| {
        let text = kubectl(cluster, &["get", name, "-n", namespace, "-o", "json"]);
        let mut role: Value = serde_json::from_str(&text).unwrap();
        let metadata = role["metadata"].as_object_mut().unwrap();
        metadata.retain(|field, _| ["name", "namespace", "labels", "annotations"].contains(&field.as_str()));
        role
    };
    ROLES.iter().map(read).collect()
}

impl Site {
    /// Applies a fault. Returns `false` where its target is not there, or does not show the effect, within
    /// `patience`.
    pub(super) async fn apply(&mut self, fault: Fault, patience: Duration) -> bool {
        let (cluster, namespace) = (self.test.cluster, self.test.namespace.clone());
        match fault {
            Fault::KillRank(rank) => {
                let kill = |pod_uid: &str| kill_rank(pod_uid, rank);
                self.kill(rank / RANKS_PER_WORKER, patience, kill).await
            }
            Fault::KillPod(worker) => {
                let kill = |pod_uid: &str| launcher(pod_uid).is_some_and(|process| kill(&process));
                self.kill(worker, patience, kill).await
            }
            Fault::KillOperator => self.kill_operator(patience).await,
            Fault::DeleteConfigMap => {
                self.delete(Object { kind: "configmap", namespace, name: CONFIG_MAP }, patience).await
            }
            Fault::DeleteSecret => {
                let namespace = RELEASE.to_owned();
                self.delete(Object { kind: "secret", namespace, name: SECRET }, patience).await
            }
            Fault::DeleteClaim => {
                // Before all pods have mounted it, its deletion would end the attempt by a cause of its own.
                if within(patience, async || self.running_gang().await).await.is_none() {
                    return false;
                }
                self.delete(Object { kind: "persistentvolumeclaim", namespace, name: CLAIM }, patience).await
            }
            Fault::DeleteRoles => {
                kubectl(cluster, &["delete", ROLES[0], ROLES[1], "-n", &namespace]);
                true
            }
            Fault::RestoreRoles => {
                self.test.create(&self.roles);
                true
            }
            Fault::RestartApiServer => cluster.restart("kube-apiserver").await.unwrap(),
            Fault::FillDisk => self.fill_disk(patience).await,
            Fault::TightenChart => {
                upgrade(cluster, &values(&namespace, false));
                let is_refused = |status: &RLTrainingJobStatus| {
                    reason(status, ConditionType::Stalled)
                        .is_some_and(|(_, reason)| reason == "PodNotAllowed")
                };
                self.tells(patience, is_refused).await
            }
            Fault::RelaxChart => {
                upgrade(cluster, &values(&namespace, true));
                true
            }
        }
    }

    /// Kills a part of a worker of a gang that trains, and waits for the record of it.
    async fn kill(&mut self, worker: usize, patience: Duration, kill: impl Fn(&str) -> bool) -> bool {
        let Some(pods) = self.gang_that_trains(patience).await else { return false };
        let num_before = num_failures(&self.test.status(NAME).await);
        let pod_uid = pods[worker].uid().unwrap();
        if !kill(&pod_uid) {
            return false;
        }
        (self.killed_pod, self.step_at_fault) = (pod_uid, self.last_checkpoint());
        self.num_kills += 1;
        // An operator without roles records it later.
        if self.tells(RECORD_TIME, |status| num_failures(status) > num_before).await {
            self.await_events().await;
        }
        true
    }

    /// Kills the leading operator once there is one; `false` after `patience`.
    async fn kill_operator(&self, patience: Duration) -> bool {
        within(patience, async || self.kill_leader().await.then_some(())).await.is_some()
    }

    /// Kills the leader, which hands nothing over, and replaces its pod: the kubelet would wait up to five
    /// minutes before it restarts a container that is killed again and again. Returns whether it had run.
    async fn kill_leader(&self) -> bool {
        let leases: Api<Lease> = Api::namespaced(self.test.client.clone(), RELEASE);
        let lease = leases.get(RELEASE).await.unwrap();
        let holder = lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
        let Some((pod, pod_uid)) = holder.rsplit_once('_') else { return false };
        let is_operator = |process: &&PathBuf| read(process, "cmdline").contains("rlt-operator");
        let processes = of_pod(pod_uid);
        let num_killed = processes.iter().filter(is_operator).filter(|process| kill(process)).count();
        let pods: Api<Pod> = Api::namespaced(self.test.client.clone(), RELEASE);
        let _ = pods.delete(pod, &DeleteParams::default().grace_period(0)).await;
        num_killed > 0
    }

    /// Deletes an object once there is one of its name; `false` after `patience`.
    async fn delete(&mut self, object: Object, patience: Duration) -> bool {
        let cluster = self.test.cluster;
        let Some(uid) = within(patience, async || object.uid(cluster)).await else { return false };
        let Object { kind, namespace, name } = &object;
        kubectl(cluster, &["delete", kind, name, "-n", namespace, "--wait=false", "--ignore-not-found"]);
        self.deleted.push((object, uid));
        true
    }

    /// Fills the disk of a gang that trains until the condition of checkpoints tells that one was not saved,
    /// or until the attempt ended because of it.
    async fn fill_disk(&mut self, patience: Duration) -> bool {
        if self.gang_that_trains(patience).await.is_none() {
            return false;
        }
        let io_failures = |status: &RLTrainingJobStatus| {
            status.failures_by_cause.get(&FailureCause::RetryableIo).copied().unwrap_or(0)
        };
        let is_unsaved = |status: &RLTrainingJobStatus| {
            reason(status, ConditionType::CheckpointHealthy).is_some_and(|(_, reason)| reason == UNSAVED)
        };
        // The status may still tell of an earlier time without space.
        if !self.tells(patience, |status| !is_unsaved(status)).await {
            return false;
        }
        let num_before = io_failures(&self.test.status(NAME).await);
        self.disk.fill();
        let told = within(patience, async || {
            let status = self.test.status(NAME).await;
            (is_unsaved(&status) || io_failures(&status) > num_before).then(|| is_unsaved(&status))
        })
        .await;
        self.disk.free();
        self.step_at_fault = self.last_checkpoint();
        if told == Some(true) {
            self.expected_events.insert(UNSAVED.to_owned());
        }
        if told.is_some() {
            self.await_events().await;
        }
        told.is_some()
    }
}
