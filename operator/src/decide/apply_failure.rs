//! What a status says where a decision could not be applied.

use k8s_openapi::jiff::Timestamp;
use rlt_api::Reason;
use rlt_api::status::RLTrainingJobStatus;

use super::{Decision, JobState, conditions};

/// Why a decision could not be applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApplyFailure {
    /// In one word for programs.
    pub reason: Reason,
    /// For people: which object, and what the API server said.
    pub message: String,
    /// Whether it stays until a person changes something; otherwise the operator goes on by itself.
    pub needs_action: bool,
}

impl Decision {
    /// The decision after it could not be applied: the status says why, beside everything else.
    ///
    /// The job itself is not deleted, so that there is a status to read.
    #[must_use]
    pub fn failed(mut self, failure: ApplyFailure, now: Timestamp) -> Self {
        self.status.conditions = conditions::conditions(&self.state, Some(&failure), &self.status, now);
        self.delete_job = false;
        self.apply_failure = Some(failure);
        self
    }
}

/// A job that has ended stays `Complete` or `Failed`, whatever is left to clean up.
pub(super) fn stalls(state: &JobState, failure: &ApplyFailure, status: &RLTrainingJobStatus) -> bool {
    let has_ended = status.completion_time.is_some() || matches!(state, JobState::Complete);
    failure.needs_action && !has_ended
}
