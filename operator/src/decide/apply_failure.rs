//! Apply failures, and how they appear in the status.

use k8s_openapi::jiff::Timestamp;
use rlt_api::Reason;
use rlt_api::status::RLTrainingJobStatus;

use super::{Decision, JobState, conditions};

/// Failure to apply a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApplyFailure {
    /// Reason of the conditions.
    pub reason: Reason,
    /// Message of the conditions: the object, and the API server's error.
    pub message: String,
    /// Whether the user has to change something; otherwise a retry may succeed.
    pub needs_action: bool,
}

impl Decision {
    /// Adds the apply failure to the status of the decision.
    ///
    /// The job is not deleted then, so that its status can be read.
    #[must_use]
    pub fn failed(mut self, failure: ApplyFailure, now: Timestamp) -> Self {
        conditions::write(&mut self.status, &self.state, Some(&failure), now);
        self.delete_job = false;
        self.apply_failure = Some(failure);
        self
    }
}

/// Whether an apply failure stalls the job. A finished job stays `Complete` or `Failed`, even if its clean-up
/// fails.
pub(super) fn stalls(state: &JobState, failure: &ApplyFailure, status: &RLTrainingJobStatus) -> bool {
    let has_ended = status.completion_time.is_some() || matches!(state, JobState::Complete);
    failure.needs_action && !has_ended
}
