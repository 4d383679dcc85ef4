//! Plays the kubelet for all pods of a namespace, by a script: how the pod of a worker ends in an attempt.

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, ResourceExt as _};
use rlt_objects::labels;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::test_namespace::{TestNamespace, ended, running};

/// The course of a pod, by the worker's index and the attempt: it keeps running, or exits with this code.
pub(crate) type Script = fn(u32, u32) -> Option<i32>;

/// Works until it is dropped.
pub(crate) struct Kubelet(JoinHandle<()>);

impl Kubelet {
    pub(crate) fn start(test: &TestNamespace, script: Script) -> Self {
        let pods = test.pods();
        Self(tokio::spawn(async move {
            let seen = watcher(pods.clone(), watcher::Config::default()).default_backoff().applied_objects();
            let seen = seen.into_stream().filter_map(async |pod| pod.ok());
            seen.for_each(|pod| play(&pods, pod, script)).await;
        }))
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn play(pods: &Api<Pod>, pod: Pod, script: Script) {
    let number = |name: &str| pod.labels()[name].parse::<u32>().unwrap();
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let fate = script(number(labels::WORKER_IDX), number(labels::ATTEMPT));
    match (phase, fate) {
        _ if pod.metadata.deletion_timestamp.is_some() => {}
        (Some("Pending"), _) => set_status(pods, &pod, running()).await,
        (Some("Running"), Some(code)) => set_status(pods, &pod, ended(code, "")).await,
        _ => {}
    }
}

/// A pod that is gone by now, or another one of its name, needs no status.
async fn set_status(pods: &Api<Pod>, pod: &Pod, status: Value) {
    let patch = json!({"metadata": {"uid": pod.uid()}, "status": status});
    let _ = pods.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await;
}
