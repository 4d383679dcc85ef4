//! Loss of one pod of a running gang, until the gang runs again.

use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::json;

use crate::bench_cluster::BenchCluster;
use crate::contestant::Gang;
use crate::statuses::Statuses;

/// Number of rounds of each fault, each with another gang.
const ROUNDS: usize = 3;
/// Exit code of a process that may be retried: it failed to read or write.
const EXIT_CODE: &str = "75";

/// Fault of a pod.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// The pod is deleted with a grace period of 0.
    Deleted,
    /// The pod's process fails.
    Failed,
}

/// Times of a recovery in milliseconds, from just before the fault.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recovery {
    /// Time until the last new pod was created.
    pub(crate) created: f64,
    /// Time until the last new pod ran.
    pub(crate) running: f64,
}

impl Fault {
    pub(crate) const ALL: [Self; 2] = [Self::Deleted, Self::Failed];

    /// Name of the fault in a report.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Deleted => "pod deleted",
            Self::Failed => "process failed",
        }
    }
}

/// Injects the fault into one gang after another.
pub(crate) async fn measure(bench: &mut BenchCluster, fault: Fault, gang: Gang) -> Vec<Recovery> {
    let statuses = Statuses::follow(bench.jobs(), bench.contestant, gang);
    let mut all = Vec::new();
    for _ in 0..ROUNDS {
        let name = bench.new_name();
        let mut before = bench.observe();
        bench.post(&name, gang).await;
        statuses.reported(&name).await;
        before.quiet().await;
        all.push(inject(bench, fault, gang).await);
        bench.delete(&name).await;
    }
    all
}

async fn inject(bench: &BenchCluster, fault: Fault, gang: Gang) -> Recovery {
    let pods = bench.pods();
    let victim = pods.list(&ListParams::default()).await.unwrap().items[gang.num_pods / 2].name_any();
    let mut observed = bench.observe().ignoring(&victim);
    match fault {
        Fault::Deleted => drop(pods.delete(&victim, &DeleteParams::default().grace_period(0)).await.unwrap()),
        Fault::Failed => {
            let code =
                json!({ "metadata": { "annotations": { "fake.rltraining.dev/exit-code": EXIT_CODE } } });
            pods.patch(&victim, &PatchParams::default(), &Patch::Merge(code)).await.unwrap();
        }
    }
    let num_new = bench.contestant.pods_after_loss(gang);
    observed.running(num_new).await;
    observed.quiet().await;
    let last = |times: Vec<f64>| times.last().copied().unwrap();
    Recovery { created: last(observed.created_times()), running: last(observed.running_times()) }
}
