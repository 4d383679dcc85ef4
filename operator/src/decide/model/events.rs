//! Events that may happen to a job, and the jobs of the model.

use std::sync::LazyLock;

use proptest::prelude::*;
use rlt_api::FailureCause;
use rlt_objects::prepare::Prepared;
use serde_json::{Value, json};

use crate::decide::fixtures::prepared;

/// Whether the ConfigMap holds the specification that the job began with.
pub(super) type IsFound = bool;

/// An event in a random history of a job.
#[derive(Clone, Debug)]
pub(super) enum ModelEvent {
    /// A pod is bound to its node, and its process does not start yet.
    PodBound(u32),
    /// A pod's process starts.
    PodStarts(u32),
    /// A pod's process ends with this code.
    ProcessExits(u32, i32),
    /// A client deletes a pod.
    PodDeleted(u32),
    /// The node of a pod does not answer any more: the pod is evicted, and its process lives on.
    NodeSilent(u32),
    /// The node of a rank is about to be terminated, or has a problem.
    NodeImpaired(u32, bool),
    /// A silent node answers again, and its deleted pods end.
    NodeReturns(u32),
    /// A silent node gets the taint out-of-service: nothing on it runs any more.
    NodeOutOfService(u32),
    /// A complete checkpoint is reported, this many steps after the last one.
    CheckpointSaved(u64),
    /// The trainer reports a step.
    StepFinished,
    /// The pod with all ranks restarts them in place, and reports it.
    RestartedInPlace,
    /// A pod that is being deleted is gone.
    PodGone(u32),
    /// A client deletes the claim of the job. It stays until no pod has a node.
    ClaimDeleted,
    /// `spec.runPolicy.suspend` is set or cleared.
    SetSuspend(bool),
    /// Time passes, in seconds. The trainer runs on, but the operator receives no report.
    TimePasses(i64),
    /// The operator crashes after this number of further calls, and another one continues.
    OperatorCrashes(usize),
    /// The operator restarts with settings that refuse the specification, and finds the one that the job
    /// began with or not; `None` is a restart with settings that accept the specification again.
    SpecificationRefused(Option<IsFound>),
    /// The API server refuses all calls after this number, except writes of the status.
    ApiServerRefuses(usize),
}

pub(super) fn events() -> impl Strategy<Value = Vec<ModelEvent>> {
    let idx = 0..NUM_WORKERS;
    let code = prop::sample::select(vec![0, 1, 2, 75, 76, 77, 78, 79, 80, 137, 139]);
    let one = prop_oneof![
        2 => idx.clone().prop_map(ModelEvent::PodBound),
        4 => idx.clone().prop_map(ModelEvent::PodStarts),
        2 => (idx.clone(), code).prop_map(|(idx, code)| ModelEvent::ProcessExits(idx, code)),
        1 => idx.clone().prop_map(ModelEvent::PodDeleted),
        1 => idx.clone().prop_map(ModelEvent::NodeSilent),
        1 => (idx.clone(), any::<bool>()).prop_map(|(idx, ends)| ModelEvent::NodeImpaired(idx, ends)),
        1 => idx.clone().prop_map(ModelEvent::NodeReturns),
        1 => idx.clone().prop_map(ModelEvent::NodeOutOfService),
        1 => (0..2u64).prop_map(ModelEvent::CheckpointSaved),
        2 => Just(ModelEvent::StepFinished),
        1 => Just(ModelEvent::RestartedInPlace),
        3 => idx.prop_map(ModelEvent::PodGone),
        1 => Just(ModelEvent::ClaimDeleted),
        1 => any::<bool>().prop_map(ModelEvent::SetSuspend),
        2 => (1..400i64).prop_map(ModelEvent::TimePasses),
        1 => (0..6usize).prop_map(ModelEvent::OperatorCrashes),
        1 => (0..6usize).prop_map(ModelEvent::ApiServerRefuses),
        1 => any::<Option<IsFound>>().prop_map(ModelEvent::SpecificationRefused),
    ];
    prop::collection::vec(one, 0..60)
}

pub(super) const NUM_WORKERS: u32 = 3;
/// `stallDeadlineSeconds` of a job; more may pass while the operator does not hear the trainer.
const STALL_SECONDS: u64 = 60;
/// Cause of restarts in place, which no other event of a history has.
pub(super) const IN_PLACE: FailureCause = FailureCause::OutOfMemory;

/// One job in two forms: active and suspended.
pub(super) type ActiveAndSuspended = [LazyLock<Prepared>; 2];
pub(super) static PLAIN: ActiveAndSuspended = [
    LazyLock::new(|| prepared(NUM_WORKERS, json!({"stallDeadlineSeconds": STALL_SECONDS}))),
    LazyLock::new(|| prepared(NUM_WORKERS, json!({"suspend": true, "stallDeadlineSeconds": STALL_SECONDS}))),
];
pub(super) static WITH_RULES: ActiveAndSuspended = [
    LazyLock::new(|| prepared(NUM_WORKERS, json!({"failurePolicy": failure_policy()}))),
    LazyLock::new(|| prepared(NUM_WORKERS, json!({"suspend": true, "failurePolicy": failure_policy()}))),
];

pub(super) fn failure_policy() -> Value {
    let codes = |values: &[i32]| json!({"operator": "In", "values": values});
    json!({"maxRestarts": 2, "rules": [
        {"name": "ignored", "action": "Ignore", "onExitCodes": codes(&[77, 137])},
        {"name": "counted", "action": "Restart", "avoidNode": true, "onExitCodes": codes(&[1, 78])},
        {"name": "fatal", "action": "FailJob", "onReasons": ["DeletionByTaintManager"]},
    ]})
}
