//! The cluster of a chaos run with the chart, the job, and the effects of faults on them.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use rlt_api::FailureCause;
use rlt_api::status::{ConditionType, RLTrainingJobStatus};
use rlt_cluster::{Cluster, Options, Shared};
use rlt_objects::labels;
use serde_json::{Value, json};

use super::disk::{self, CLASS, Disk};
use super::plan::{Fault, NUM_WORKERS, RANKS_PER_WORKER};
use crate::chart::{RELEASE, kubectl, upgrade};
use crate::container::kill_container;
use crate::examples::{example, supervised};
use crate::processes::{kill, kill_rank, of_pod, read};
use crate::test_namespace::{PATIENCE, TestNamespace, merge, reason};

/// Name of the job.
pub(super) const NAME: &str = "chaos";
/// Run folder of the job on the disk.
pub(super) const OUTPUT: &str = "runs/chaos";
/// Steps of the job until it is told its end; no machine trains as many.
const ENDLESS: u64 = 1_000_000;
/// Steps between two checkpoints.
const EVERY_STEPS: u64 = 2;
/// Steps after the last fault.
const LAST_STEPS: u64 = 3;
/// Capability that the job requests, and that the stricter settings do not allow.
const CAPABILITY: &str = "IPC_LOCK";
/// The operator's role in the namespace of the job, and its binding.
const ROLES: [&str; 2] = ["rolebinding/rl-operator-jobs", "role/rl-operator-jobs"];
/// Objects that are deleted.
const CONFIG_MAP: &str = "chaos-manifest";
const CLAIM: &str = "chaos-storage";
const SECRET: &str = "rl-operator-channel";
/// Reason of the Event at the end of the job.
const LAST_EVENT: &str = "StepsFinished";
/// Time that the record of a failure may take before the next fault.
const RECORD_TIME: Duration = Duration::from_secs(15);
/// Time between two looks at a condition.
const POLL: Duration = Duration::from_millis(100);

/// The run has a cluster of its own: restarts of the API server would fail other tests.
static CLUSTER: Shared = Shared::new(|| {
    let options = Options::control_plane().with_real_node();
    ["buildah", "debootstrap", "mount", "df"].into_iter().fold(options, Options::with_tool)
});

/// The installed chart with a job that trains.
pub(super) struct Site {
    pub(super) test: TestNamespace,
    pub(super) disk: Disk,
    /// Objects that were deleted, each with the UID that it had.
    pub(super) deleted: Vec<(Object, String)>,
    /// Number of killed ranks and pods, each of which ended an attempt.
    pub(super) num_kills: u32,
    /// Reasons of all Events so far; the API server keeps them for an hour.
    pub(super) event_reasons: BTreeSet<String>,
    /// Manifests of [`ROLES`].
    roles: Vec<Value>,
    /// UID of the pod that was killed last.
    killed_pod: String,
    /// Step of the newest checkpoint when the gang was disturbed last.
    step_at_fault: u64,
}

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

/// What the job trains, as a manifest that needs no cluster. Each rank has one thread wherever it is, so that
/// sums have one order.
pub(super) fn training(num_steps: u64) -> Value {
    let changes = json!({
        "training": { "steps": num_steps },
        "data": { "task": { "numHeldOut": 8 } },
        "checkpoint": { "everySteps": EVERY_STEPS },
        "workers": { "count": NUM_WORKERS, "ranksPerWorker": RANKS_PER_WORKER, "threads": 1 }
    });
    let mut manifest = example(include_str!("../../../../examples/sharded/job.yaml"), &changes);
    manifest["metadata"]["name"] = NAME.into();
    manifest
}

/// The job: its claim, its capability, and more retries than there are faults.
fn job() -> Value {
    let mut manifest = training(ENDLESS);
    let changes = json!({
        "workers": {
            "storage": { "size": "1Gi", "storageClassName": CLASS },
            "pod": { "capabilities": [CAPABILITY] }
        },
        "runPolicy": { "retries": { "crash": 1000, "io": 1000 } }
    });
    merge(&mut manifest["spec"], &changes);
    manifest
}

/// Values of the chart, which watches one namespace and allows what the job requests, or not.
fn values(namespace: &str, is_allowed: bool) -> String {
    let privileges = format!(",podPrivileges.capabilities={{{CAPABILITY}}}");
    format!(",namespaces={{{namespace}}}{}", if is_allowed { &*privileges } else { "" })
}

/// Reads the manifests of [`ROLES`], as they are created again.
fn read_roles(cluster: &Cluster, namespace: &str) -> Vec<Value> {
    let read = |name: &&str| {
        let text = kubectl(cluster, &["get", name, "-n", namespace, "-o", "json"]);
        let mut role: Value = serde_json::from_str(&text).unwrap();
        let metadata = role["metadata"].as_object_mut().unwrap();
        metadata.retain(|field, _| ["name", "namespace", "labels", "annotations"].contains(&field.as_str()));
        role
    };
    ROLES.iter().map(read).collect()
}

/// Calls `act` until it returns something; `None` after `patience`.
async fn within<T>(patience: Duration, mut act: impl AsyncFnMut() -> Option<T>) -> Option<T> {
    let begun = Instant::now();
    loop {
        if let Some(found) = act().await {
            return Some(found);
        }
        if begun.elapsed() > patience {
            return None;
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Number of attempts that have failed.
pub(super) fn num_failures(status: &RLTrainingJobStatus) -> u32 {
    status.failures_by_cause.values().sum()
}

impl Site {
    /// Starts the cluster with the chart and the job; `None` where the machine cannot run it.
    pub(super) async fn start() -> Option<Self> {
        let cluster = CLUSTER.get()?;
        for image in ["rlt-operator", "rlt-trainer"] {
            cluster.load_image(&rlt_tests::test_image(image)).unwrap();
        }
        let test = TestNamespace::without_definition(cluster, NAME).await;
        let disk = Disk::mount(&test);
        disk.folder.run(&supervised(), "runs/sft");
        upgrade(cluster, &values(&test.namespace, true));
        let definition = "crd/rltrainingjobs.rltraining.dev";
        kubectl(cluster, &["wait", "--for=condition=Established", definition, "--timeout=300s"]);
        let roles = read_roles(cluster, &test.namespace);
        tokio::spawn(disk::give_back(test.client.clone()));
        let job = serde_json::from_value(job()).unwrap();
        test.jobs().create(&PostParams::default(), &job).await.unwrap();
        let site = Self {
            test,
            disk,
            deleted: Vec::new(),
            num_kills: 0,
            event_reasons: BTreeSet::new(),
            roles,
            killed_pod: String::new(),
            step_at_fault: 0,
        };
        site.assert_trains().await;
        Some(site)
    }

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
                let kill = |pod_uid: &str| {
                    kill_container(pod_uid);
                    true
                };
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
        self.tells(RECORD_TIME, |status| num_failures(status) > num_before).await;
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
        kubectl(cluster, &["delete", kind, name, "-n", namespace, "--wait=false"]);
        self.deleted.push((object, uid));
        true
    }

    /// Fills the disk of a gang that trains until the status tells that a checkpoint was not saved, or that
    /// the attempt ended because of it.
    async fn fill_disk(&mut self, patience: Duration) -> bool {
        if self.gang_that_trains(patience).await.is_none() {
            return false;
        }
        let io_failures = |status: &RLTrainingJobStatus| {
            status.failures_by_cause.get(&FailureCause::RetryableIo).copied().unwrap_or(0)
        };
        let is_unsaved = |status: &RLTrainingJobStatus| {
            let progress = status.progress.as_ref();
            progress
                .is_some_and(|one| one.warning_reasons.iter().any(|reason| reason == "CheckpointNotSaved"))
        };
        let num_before = io_failures(&self.test.status(NAME).await);
        self.disk.fill();
        let tells_of_disk =
            |status: &RLTrainingJobStatus| is_unsaved(status) || io_failures(status) > num_before;
        let is_told = self.tells(patience, tells_of_disk).await;
        self.disk.free();
        self.step_at_fault = self.last_checkpoint();
        is_told
    }

    /// Waits until the gang has saved a checkpoint since it was disturbed last; returns its pods by worker,
    /// or `None` after `patience`.
    async fn gang_that_trains(&self, patience: Duration) -> Option<Vec<Pod>> {
        within(patience, async || {
            let pods = self.running_gang().await?;
            (self.last_checkpoint() > self.step_at_fault).then_some(pods)
        })
        .await
    }

    /// The pods of all workers by their index, where they run and belong to one attempt.
    async fn running_gang(&self) -> Option<Vec<Pod>> {
        let of_job = ListParams::default().labels(&format!("{}={NAME}", labels::JOB_NAME));
        let mut pods = self.test.pods().list(&of_job).await.unwrap().items;
        pods.retain(|pod| self.is_running(pod));
        pods.sort_by_key(|pod| pod.name_any());
        let attempts = pods.iter().map(|pod| &pod.labels()[labels::ATTEMPT]);
        let num_attempts = attempts.collect::<BTreeSet<_>>().len();
        (pods.len() == NUM_WORKERS && num_attempts == 1).then_some(pods)
    }

    async fn assert_trains(&self) {
        let gang = self.gang_that_trains(PATIENCE).await;
        let status = self.test.status(NAME).await;
        assert!(gang.is_some(), "the job does not train: {status:#?}");
    }

    fn is_running(&self, pod: &Pod) -> bool {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        let is_killed = pod.metadata.uid.as_deref() == Some(self.killed_pod.as_str());
        phase == Some("Running") && pod.metadata.deletion_timestamp.is_none() && !is_killed
    }

    fn last_checkpoint(&self) -> u64 {
        self.disk.folder.last_checkpoint(OUTPUT)
    }

    /// Waits until the status of the job is as wished; `false` after `patience`.
    async fn tells(&self, patience: Duration, wish: impl Fn(&RLTrainingJobStatus) -> bool) -> bool {
        within(patience, async || wish(&self.test.status(NAME).await).then_some(())).await.is_some()
    }

    /// Notes the reasons of the job's Events, before they expire.
    pub(super) fn note_events(&mut self) {
        let reasons = "jsonpath={range .items[*]}{.reason}{\"\\n\"}{end}";
        let text = kubectl(self.test.cluster, &["get", "events", "-n", &self.test.namespace, "-o", reasons]);
        self.event_reasons.extend(text.lines().map(str::to_owned));
    }

    /// Suspends the job and lets it train the last steps; returns the number of all steps.
    pub(super) async fn finish(&mut self) -> u64 {
        self.assert_trains().await;
        self.test.patch_job(NAME, json!({ "runPolicy": { "suspend": true } })).await;
        self.test.when_true(NAME, ConditionType::Suspended).await;
        self.test.when_pods(NAME, <[_]>::is_empty).await;
        let num_steps = self.last_checkpoint() + LAST_STEPS;
        let last = json!({ "training": { "steps": num_steps }, "runPolicy": { "suspend": false } });
        self.test.patch_job(NAME, last).await;
        self.test.when_true(NAME, ConditionType::Complete).await;
        // The Event follows the status.
        let told = within(PATIENCE, async || {
            self.note_events();
            self.event_reasons.contains(LAST_EVENT).then_some(())
        })
        .await;
        assert!(told.is_some(), "the end of the job has no Event: {:?}", self.event_reasons);
        num_steps
    }
}
