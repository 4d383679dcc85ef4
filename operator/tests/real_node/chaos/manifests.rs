//! The job of a chaos run, and the values of its chart.

use serde_json::{Value, json};

use super::disk::CLASS;
use super::plan::{NUM_WORKERS, RANKS_PER_WORKER};
use crate::examples::example;
use crate::test_namespace::merge;

/// Name of the job.
pub(super) const NAME: &str = "chaos";
/// Run folder of the job on the disk.
pub(super) const OUTPUT: &str = "runs/chaos";
/// Steps of the job until it is told its end; no machine trains as many.
const ENDLESS: u64 = 1_000_000;
/// Steps between two checkpoints.
const EVERY_STEPS: u64 = 2;
/// Capability that the job requests, and that the stricter settings do not allow.
const CAPABILITY: &str = "IPC_LOCK";

/// Manifest of the training, which needs no cluster. Each rank has one thread wherever it is, so that sums
/// have one order.
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
pub(super) fn job() -> Value {
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
pub(super) fn values(namespace: &str, is_allowed: bool) -> String {
    let privileges = format!(",podPrivileges.capabilities={{{CAPABILITY}}}");
    format!(",namespaces={{{namespace}}}{}", if is_allowed { &*privileges } else { "" })
}
