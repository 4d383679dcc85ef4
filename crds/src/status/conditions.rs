//! Conditions of a job, and their summary in one word. When they hold is decided by the operator.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A summary of the conditions of a job, for tools that compare one value. `Succeeded` and `Failed` are
/// final; the others may follow each other in any order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Phase {
    /// Workers are awaited: for the first time, after a failure or after a pause.
    Pending,
    /// All workers are ready (`PodsReady`).
    Running,
    /// Held back on request or by a queue (`Suspended`).
    Suspended,
    /// The job has ended well (`Complete`).
    Succeeded,
    /// The job has ended badly (`Failed`).
    Failed,
}

impl Phase {
    /// The phase of these conditions.
    pub fn of(conditions: &[Condition]) -> Self {
        let holds = |type_| {
            let is_it = |one: &&Condition| one.type_ == type_;
            conditions.iter().find(is_it).is_some_and(|one| one.status == ConditionStatus::True)
        };
        let phases = [
            (ConditionType::Complete, Self::Succeeded),
            (ConditionType::Failed, Self::Failed),
            (ConditionType::Suspended, Self::Suspended),
            (ConditionType::PodsReady, Self::Running),
        ];
        phases.into_iter().find(|(type_, _)| holds(*type_)).map_or(Self::Pending, |(_, phase)| phase)
    }
}

/// The condition types, all present from the first status on, and in this order: the first that is true
/// describes the job best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum ConditionType {
    /// The job has ended well.
    Complete,
    /// The job has ended badly.
    Failed,
    /// The operator cannot continue without a change by the user.
    Stalled,
    /// The job is held back on request.
    Suspended,
    /// The operator is working towards the specification.
    Reconciling,
    /// The trainer makes steps.
    Progressing,
    /// All workers are ready.
    PodsReady,
    /// The newest checkpoint is complete.
    CheckpointHealthy,
    /// A queue has admitted the job.
    Admitted,
    /// The summary: unknown while the job is active, then true or false for good.
    Succeeded,
}

impl ConditionType {
    /// Every type, in the order of a status.
    pub const ALL: [Self; 10] = [
        Self::Complete,
        Self::Failed,
        Self::Stalled,
        Self::Suspended,
        Self::Reconciling,
        Self::Progressing,
        Self::PodsReady,
        Self::CheckpointHealthy,
        Self::Admitted,
        Self::Succeeded,
    ];
}

/// Whether a condition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ConditionStatus {
    /// It holds.
    True,
    /// It does not hold.
    False,
    /// It is not known yet.
    Unknown,
}

/// One condition, in the form of Kubernetes' own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// The type of the condition.
    #[serde(rename = "type")]
    pub type_: ConditionType,
    /// Whether it holds.
    pub status: ConditionStatus,
    /// The generation of the specification that it speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// When `status` last changed (RFC 3339).
    #[schemars(extend("format" = "date-time"))]
    pub last_transition_time: String,
    /// Why, in one word for programs.
    #[schemars(length(min = 1, max = 128))]
    pub reason: String,
    /// A message for users.
    #[schemars(length(max = 32768))]
    pub message: String,
}
