//! Rules of pods and of what runs in them: workers, failures, checkpoints and tracking.

pub(super) mod checkpoint;
pub(super) mod failure_policy;
pub(super) mod pod;
pub(super) mod tracking;
pub(super) mod workers;
