//! One pod of a running gang is lost, and the gang runs again.

use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::json;

use crate::bench_cluster::BenchCluster;
use crate::statuses::Statuses;

/// Pods of the gang.
const NUM_PODS: usize = 8;
/// How often each blow falls, always on another gang.
const ROUNDS: usize = 3;
/// Of a process that may be tried again: it could not read or write.
const EXIT_CODE: &str = "75";

/// What happens to the pod.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Blow {
    /// It is deleted, without any grace.
    Deleted,
    /// Its process fails.
    Failed,
}

/// Milliseconds from just before the blow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Again {
    /// Until the last new pod was made.
    pub(crate) created: f64,
    /// Until it ran.
    pub(crate) running: f64,
}

impl Blow {
    pub(crate) const ALL: [Self; 2] = [Self::Deleted, Self::Failed];

    /// In words.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Deleted => "pod deleted",
            Self::Failed => "process failed",
        }
    }
}

/// Strikes gang after gang.
pub(crate) async fn measure(bench: &mut BenchCluster, blow: Blow) -> Vec<Again> {
    let statuses = Statuses::follow(bench.jobs(), bench.contestant, NUM_PODS);
    let mut all = Vec::new();
    for _ in 0..ROUNDS {
        let name = bench.new_name();
        let mut before = bench.observe();
        bench.post(&name, NUM_PODS).await;
        statuses.reported(&name).await;
        before.quiet().await;
        all.push(strike(bench, blow).await);
        bench.delete(&name).await;
    }
    all
}

async fn strike(bench: &BenchCluster, blow: Blow) -> Again {
    let pods = bench.pods();
    let victim = pods.list(&ListParams::default()).await.unwrap().items[NUM_PODS / 2].name_any();
    let mut observed = bench.observe().ignoring(&victim);
    match blow {
        Blow::Deleted => drop(pods.delete(&victim, &DeleteParams::default().grace_period(0)).await.unwrap()),
        Blow::Failed => {
            let code =
                json!({ "metadata": { "annotations": { "fake.rltraining.dev/exit-code": EXIT_CODE } } });
            pods.patch(&victim, &PatchParams::default(), &Patch::Merge(code)).await.unwrap();
        }
    }
    let num_new = bench.contestant.pods_after_loss();
    observed.running(num_new).await;
    observed.quiet().await;
    let last = |times: Vec<f64>| times.last().copied().unwrap();
    Again { created: last(observed.created_times()), running: last(observed.running_times()) }
}
