//! The end of an attempt, and what follows from it: another attempt, or the end of the job.

pub(super) mod attempt_state;
pub(super) mod evacuation;
pub(super) mod failure;
pub(super) mod failure_counts;
pub(super) mod failure_policy;
pub(super) mod restarts;
pub(super) mod retries;
pub(super) mod success;
