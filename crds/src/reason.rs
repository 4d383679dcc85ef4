//! Machine-readable reasons of conditions and Events, each a single word. They are part of the API.

use crate::failure::FailureCause;
use crate::symptoms::SymptomKind;

/// The reason why a condition holds or an event was published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The condition is not reached yet.
    NotFinished,
    /// All workers ended well.
    StepsFinished,
    /// All steps were finished before the workers of the attempt began.
    ResultFound,
    /// The cause of the end of an attempt, or of the job.
    Failure(FailureCause),
    /// `spec.runPolicy.suspend` is not set.
    NotSuspended,
    /// `spec.runPolicy.suspend` is true, and no worker is left.
    Suspended,
    /// `spec.runPolicy.suspend` is true, and workers save a checkpoint.
    Suspending,
    /// The job asks for no queue.
    NoQueue,
    /// The queue has not admitted the job yet, or has evicted it.
    Queued,
    /// The job asks for a queue, and the cluster has none.
    QueueMissing,
    /// The queue has admitted the job.
    Admitted,
    /// Workers are being started.
    WorkersStarting,
    /// All workers run.
    WorkersRunning,
    /// The workers of the last attempt must be gone before those of the next attempt start.
    Restarting,
    /// Several attempts ended soon after their start, so that the next one waits.
    WaitingToRestart,
    /// The API server refuses a pod.
    WorkersRefused,
    /// The API server refuses a call about another object of the job.
    ObjectRefused,
    /// An object with a name that the job needs belongs to another owner.
    NameConflict,
    /// The job's objects could not be applied several times in a row.
    ApplyFailed,
    /// A worker cannot be stopped, because its node does not answer.
    NodeUnreachable,
    /// The claim of the job is being deleted, and workers cannot start before it is gone.
    ClaimTerminating,
    /// No worker is needed.
    NoWorkers,
    /// The job has no storage: its result is lost with its pods.
    NoStorage,
    /// The specification has a value that looks like a secret.
    OpenSecret,
    /// The specification breaks a rule.
    InvalidSpec,
    /// The defaults of the job's namespace cannot be read.
    InvalidDefaults,
    /// The job requests privileges that the operator's settings do not allow.
    PodNotAllowed,
    /// Nothing prevents progress.
    NothingStalled,
    /// There is nothing left to reconcile.
    Settled,
    /// The trainer has not reported yet.
    NoReport,
    /// The trainer finishes steps.
    StepsAdvancing,
    /// The trainer computes on the CPU, although the machine has a GPU.
    RunsOnCpu,
    /// The trainer continues, but its last checkpoints could not be saved.
    CheckpointNotSaved,
    /// The trainer finishes steps, and its metrics show a symptom.
    Symptom(SymptomKind),
    /// The trainer warns for a reason that this release does not know.
    OtherWarning,
    /// No checkpoint is complete yet.
    NoCheckpoint,
    /// The newest checkpoint is complete.
    CheckpointComplete,
}

impl Reason {
    /// Yields every reason.
    pub fn all() -> impl Iterator<Item = Self> {
        let plain = [
            Self::NotFinished,
            Self::StepsFinished,
            Self::ResultFound,
            Self::NotSuspended,
            Self::Suspended,
            Self::Suspending,
            Self::NoQueue,
            Self::Queued,
            Self::QueueMissing,
            Self::Admitted,
            Self::WorkersStarting,
            Self::WorkersRunning,
            Self::Restarting,
            Self::WaitingToRestart,
            Self::WorkersRefused,
            Self::ObjectRefused,
            Self::NameConflict,
            Self::ApplyFailed,
            Self::NodeUnreachable,
            Self::ClaimTerminating,
            Self::NoWorkers,
            Self::NoStorage,
            Self::OpenSecret,
            Self::InvalidSpec,
            Self::InvalidDefaults,
            Self::PodNotAllowed,
            Self::NothingStalled,
            Self::Settled,
            Self::NoReport,
            Self::StepsAdvancing,
            Self::OtherWarning,
            Self::NoCheckpoint,
            Self::CheckpointComplete,
        ];
        plain.into_iter().chain(Self::warnings()).chain(FailureCause::ALL.map(Self::Failure))
    }

    /// Reasons of the trainer's warnings, the most important first.
    pub fn warnings() -> impl Iterator<Item = Self> {
        [Self::RunsOnCpu, Self::CheckpointNotSaved].into_iter().chain(SymptomKind::ALL.map(Self::Symptom))
    }

    /// Returns the reason of a trainer's warning with this name; `OtherWarning` for one of a later release.
    pub fn of_warning(name: &str) -> Self {
        Self::warnings().find(|reason| reason.name() == name).unwrap_or(Self::OtherWarning)
    }

    /// Returns the reason as one word.
    pub fn name(self) -> String {
        match self {
            Self::Failure(cause) => format!("{cause:?}"),
            Self::Symptom(kind) => kind.name().to_owned(),
            plain => format!("{plain:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::Reason;

    #[test]
    fn every_reason_is_documented() {
        let page = include_str!("../../docs/status.md");
        for name in Reason::all().map(Reason::name) {
            assert!(page.contains(&format!("\n| `{name}` |")), "{name} is not in docs/status.md");
        }
    }

    #[test]
    fn every_reason_has_a_distinct_name() {
        let names: BTreeSet<_> = Reason::all().map(Reason::name).collect();
        assert_eq!(names.len(), Reason::all().count());
        assert!(names.iter().all(|name| name.chars().all(|each| each.is_ascii_alphanumeric())));
    }
}
