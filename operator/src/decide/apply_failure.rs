//! Apply failures in the status.

use k8s_openapi::jiff::Timestamp;
use rlt_api::Reason;
use rlt_api::status::RLTrainingJobStatus;

use super::{Decision, JobState, conditions};

/// Why a decision could not be applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApplyFailure {
    /// The condition's reason.
    pub reason: Reason,
    /// The condition's message: which object, and the API server's error.
    pub message: String,
    /// Whether the user has to change something; otherwise retries may succeed.
    pub needs_action: bool,
}

impl Decision {
    /// The decision with the apply failure in its status.
    ///
    /// The job itself is then not deleted, so that its status can be read.
    #[must_use]
    pub fn failed(mut self, failure: ApplyFailure, now: Timestamp) -> Self {
        conditions::write(&mut self.status, &self.state, Some(&failure), now);
        self.delete_job = false;
        self.apply_failure = Some(failure);
        self
    }
}

/// A finished job stays `Complete` or `Failed`, also while its clean-up fails.
pub(super) fn stalls(state: &JobState, failure: &ApplyFailure, status: &RLTrainingJobStatus) -> bool {
    let has_ended = status.completion_time.is_some() || matches!(state, JobState::Complete);
    failure.needs_action && !has_ended
}
