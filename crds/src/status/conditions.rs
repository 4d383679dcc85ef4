//! Conditions of a job, and their summary in one word. When they hold is decided by the operator.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Summary of the conditions of a job, for tools that compare one value. `Succeeded` and `Failed` are final;
/// the others may follow each other in any order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Phase {
    /// Workers are awaited: for the first time, after a failure or after a suspension.
    Pending,
    /// All workers are ready (`PodsReady`).
    Running,
    /// The job is held back on request or by a queue (`Suspended`).
    Suspended,
    /// The job has succeeded (`Complete`).
    Succeeded,
    /// The job has failed (`Failed`).
    Failed,
}

impl Phase {
    /// Summarizes these conditions as a phase.
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

/// Type of a condition. All types are present from the first status on, and in this order: the first that is
/// true describes the job best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum ConditionType {
    /// The job has succeeded.
    Complete,
    /// The job has failed.
    Failed,
    /// The operator cannot continue without a change by the user.
    Stalled,
    /// The job is held back on request or by a queue, and no worker is left.
    Suspended,
    /// The operator is working towards the specification.
    Reconciling,
    /// The trainer finishes steps.
    Progressing,
    /// All workers are ready.
    PodsReady,
    /// The newest checkpoint is complete.
    CheckpointHealthy,
    /// No queue holds the job back.
    Admitted,
    /// Summary of the others: unknown while the job is active, then true or false for good.
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

/// Status of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ConditionStatus {
    /// The condition holds.
    True,
    /// The condition does not hold.
    False,
    /// Whether the condition holds is not known yet.
    Unknown,
}

/// Condition of a job, in the form of Kubernetes' own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Type of the condition.
    #[serde(rename = "type")]
    pub type_: ConditionType,
    /// Whether the condition holds.
    pub status: ConditionStatus,
    /// Generation of the specification that the condition reflects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Time at which `status` last changed (RFC 3339).
    #[schemars(extend("format" = "date-time"))]
    pub last_transition_time: String,
    /// Reason for the status in one word, for programs.
    #[schemars(length(min = 1, max = 128))]
    pub reason: String,
    /// Explanation of the status for users.
    #[schemars(length(max = 32768))]
    pub message: String,
}
