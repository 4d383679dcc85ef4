//! Jobs and workers for the tests of decisions.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use rlt_api::status::RLTrainingJobStatus;
use rlt_objects::prepare::Prepared;
use rlt_objects::queue::{NO_QUEUE, Queueing, Workload};
use rlt_objects::worker::{Exit, Worker};
use rlt_objects::worker_id::{GroupName, WorkerId};

use super::ReconcileInput;
use crate::nodes::NodeStates;

pub(crate) use rlt_objects::fixtures::{job, prepared, with_samplers, with_spares};

/// Returns a worker that waits for a node.
pub(crate) fn worker(idx: u32, attempt: u32) -> Worker {
    Worker {
        name: format!("quickstart-trainer-{idx}").into(),
        uid: format!("{idx}-{attempt}").into(),
        resource_version: 1,
        idx,
        attempt,
        ..Worker::default()
    }
}

/// Returns the queue state of a job with this Workload.
pub(crate) fn asked(workload: Option<Workload>) -> Queueing {
    Queueing {
        queue: Some("team".into()),
        requested: Some("team".into()),
        is_served: true,
        workload: workload.map(Arc::new),
        wanted: Some("d".into()),
        ..NO_QUEUE
    }
}

/// Returns a Workload that waits for quota.
pub(crate) fn waiting() -> Workload {
    Workload { name: "w".into(), uid: "w".into(), digest: Some("d".into()), ..Workload::default() }
}

/// Returns the indices of the workers of the first group.
pub(crate) fn indices(ids: &[WorkerId]) -> Vec<u32> {
    ids.iter().filter(|id| id.group == GroupName::default()).map(|id| id.idx).collect()
}

/// Returns the exit of a process with this code, at this time in seconds since 1970.
pub(crate) fn exit(code: i32, seconds: i64) -> Box<Exit> {
    let finished_at = k8s_openapi::jiff::Timestamp::from_second(seconds).ok();
    Box::new(Exit {
        code,
        reason: if code == 0 { "Completed" } else { "Error" }.into(),
        message: String::new(),
        finished_at,
    })
}

/// Returns the time of all decisions in tests.
pub(crate) fn now() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap()
}

/// States of nodes for decisions without any node.
static NO_NODES: NodeStates = NodeStates::new();

/// Returns the default input of a decision in tests: a job without a queue and without reports.
pub(crate) fn input<'a>(
    prepared: &'a Prepared,
    status: &'a RLTrainingJobStatus,
    workers: &'a [Arc<Worker>],
) -> ReconcileInput<'a> {
    ReconcileInput {
        prepared,
        status,
        generation: 1,
        is_tracked: false,
        is_copy: false,
        workers,
        nodes: &NO_NODES,
        node_labels: None,
        report: None,
        launchers_due: None,
        deleting_claim: None,
        queueing: &NO_QUEUE,
        now: now(),
    }
}
