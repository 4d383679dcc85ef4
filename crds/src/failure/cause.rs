//! Causes that can end an attempt, and how often each cause is retried. Other modules read the cause from a
//! pod.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::exit_code::ExitCode;
use crate::spec::RetriesSpec;

/// Cause of an attempt's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum FailureCause {
    /// A worker was evicted, preempted or deleted.
    Disrupted,
    /// The node of a worker is gone.
    NodeLost,
    /// The node of a worker is about to be removed: a spot node, a maintenance, a cluster that shrinks.
    NodeTerminating,
    /// The node of a worker has a problem, such as a broken GPU.
    NodeProblem,
    /// A worker ran out of memory.
    OutOfMemory,
    /// A worker ended by a signal of unknown origin.
    Signalled,
    /// The GPU of a worker failed, or another process has its memory.
    DeviceFailed,
    /// A worker lost another one.
    PeerLost,
    /// Reading or writing failed, possibly temporarily.
    RetryableIo,
    /// The loss or the gradients stayed non-finite.
    Diverged,
    /// The job cannot work on this model, data or machine.
    BadConfig,
    /// No complete checkpoint could be read.
    CorruptCheckpoint,
    /// A worker failed with an error without a class of its own.
    TrainerFailed,
    /// No step was finished within `stallDeadlineSeconds`.
    NoProgress,
    /// A container could not be started within `startupDeadlineSeconds`.
    StartFailed,
    /// No node had room for a worker within `startupDeadlineSeconds`.
    NotScheduled,
    /// The job took longer than `activeDeadlineSeconds`.
    DeadlineExceeded,
}

/// How often an attempt may be retried after it ended for one cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    /// Retried without a limit.
    Unlimited,
    /// Retried up to a limit, counted together with causes of the same budget.
    Limited {
        /// Field below `spec.runPolicy.retries` that sets the limit.
        field: &'static str,
        /// Value of the field.
        limit: u32,
    },
    /// Not retried, because the next attempt would end in the same way.
    Never,
}

impl FailureCause {
    /// All causes, in the order of declaration.
    pub const ALL: [Self; 17] = [
        Self::Disrupted,
        Self::NodeLost,
        Self::NodeTerminating,
        Self::NodeProblem,
        Self::OutOfMemory,
        Self::Signalled,
        Self::DeviceFailed,
        Self::PeerLost,
        Self::RetryableIo,
        Self::Diverged,
        Self::BadConfig,
        Self::CorruptCheckpoint,
        Self::TrainerFailed,
        Self::NoProgress,
        Self::StartFailed,
        Self::NotScheduled,
        Self::DeadlineExceeded,
    ];

    /// Returns the cause of a worker's exit code; `None` for success. Codes above 128 are signals.
    pub fn from_exit_code(code: i32) -> Option<Self> {
        Some(match ExitCode::from_code(code) {
            Some(ExitCode::Success) => return None,
            Some(ExitCode::Usage | ExitCode::BadConfig) => Self::BadConfig,
            Some(ExitCode::RetryableIo) => Self::RetryableIo,
            Some(ExitCode::PeerLost) => Self::PeerLost,
            Some(ExitCode::Diverged) => Self::Diverged,
            Some(ExitCode::CorruptCheckpoint) => Self::CorruptCheckpoint,
            Some(ExitCode::Preempted) => Self::Disrupted,
            Some(ExitCode::DeviceFailed) => Self::DeviceFailed,
            Some(ExitCode::Failure) => Self::TrainerFailed,
            None if code > 128 => Self::Signalled,
            None => Self::TrainerFailed,
        })
    }

    /// Returns how often an attempt that ended for this cause is retried.
    pub fn budget(self, retries: &RetriesSpec) -> Budget {
        let limited = |field, limit| Budget::Limited { field, limit };
        match self {
            Self::Disrupted | Self::NodeLost | Self::NodeTerminating | Self::NodeProblem => Budget::Unlimited,
            Self::OutOfMemory => limited("outOfMemory", retries.out_of_memory),
            Self::Signalled | Self::DeviceFailed | Self::PeerLost => limited("crash", retries.crash),
            Self::RetryableIo => limited("io", retries.io),
            Self::CorruptCheckpoint => limited("checkpoint", retries.checkpoint),
            Self::TrainerFailed => limited("failure", retries.failure),
            Self::NoProgress => limited("stall", retries.stall),
            Self::Diverged
            | Self::BadConfig
            | Self::StartFailed
            | Self::NotScheduled
            | Self::DeadlineExceeded => Budget::Never,
        }
    }

    /// Whether the node may be at fault, so that another node may do better.
    pub fn may_be_the_nodes(self) -> bool {
        matches!(
            self,
            Self::NodeLost
                | Self::NodeTerminating
                | Self::NodeProblem
                | Self::Signalled
                | Self::DeviceFailed
                | Self::RetryableIo
                | Self::TrainerFailed
        )
    }

    /// Whether the node is at fault: an attempt in the same place would probably end in the same way.
    pub fn is_the_nodes(self) -> bool {
        matches!(self, Self::NodeTerminating | Self::NodeProblem | Self::DeviceFailed)
    }

    /// Returns advice for the user on what to do about this cause.
    pub fn advice(self) -> &'static str {
        match self {
            Self::Disrupted => "nothing: the job continues automatically; storage keeps its checkpoints",
            Self::NodeLost => "nothing: the job continues automatically; storage keeps its checkpoints",
            Self::NodeTerminating => {
                "nothing: the job continues on other nodes; storage keeps its checkpoints"
            }
            Self::NodeProblem => {
                "nothing: the job continues on other nodes; drain the node and have it repaired"
            }
            Self::OutOfMemory => {
                "raise spec.workers.resources.memory, set spec.training.activationCheckpointing, or lower \
                 spec.rollout.maxCompletionTokens or spec.training.maxTokensPerMicroBatch, which times \
                 spec.workers.mesh.sp also limits the length of demonstrations"
            }
            Self::Signalled => "see the pod's log for what came before the signal",
            Self::DeviceFailed => {
                "nothing, where another node has a free GPU; on this one see `nvidia-smi` and the Xid errors in the \
                 kernel's log, and drain it where its GPU needs a reset"
            }
            Self::PeerLost => "see the logs of the other workers: one of them ended first",
            Self::RetryableIo => "see whether the storage is full and the model's source can be reached",
            Self::Diverged => "lower spec.training.optimizer.learningRate or spec.training.maxGradNorm",
            Self::BadConfig => "correct what the message names, in a new job",
            Self::CorruptCheckpoint => {
                "remove the run folder, or name another one in spec.checkpoint.resumeFrom"
            }
            Self::TrainerFailed => "see the pod's log",
            Self::NoProgress => {
                "raise spec.runPolicy.stallDeadlineSeconds, or see the pod's log for what it waits for"
            }
            Self::StartFailed => "correct what the message names: image, secret or volume",
            Self::NotScheduled => "ask for less, or give the cluster what the message misses",
            Self::DeadlineExceeded => "raise spec.runPolicy.activeDeadlineSeconds",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Budget, FailureCause};
    use crate::failure::ExitCode;
    use crate::spec::RetriesSpec;

    #[test]
    fn every_exit_code_has_a_cause_and_only_success_has_none() {
        for exit in ExitCode::ALL {
            let cause = FailureCause::from_exit_code(i32::from(exit.code()));
            assert_eq!(cause.is_none(), exit == ExitCode::Success);
        }
        assert_eq!(FailureCause::from_exit_code(139), Some(FailureCause::Signalled));
        assert_eq!(FailureCause::from_exit_code(3), Some(FailureCause::TrainerFailed));
    }

    #[test]
    fn disruptions_are_never_counted_and_permanent_failures_are_never_retried() {
        let retries = RetriesSpec::default();
        assert_eq!(FailureCause::NodeLost.budget(&retries), Budget::Unlimited);
        assert_eq!(FailureCause::BadConfig.budget(&retries), Budget::Never);
        assert_eq!(
            FailureCause::PeerLost.budget(&retries),
            FailureCause::Signalled.budget(&retries),
            "the loss of a peer is a crash seen from afar"
        );
    }
}
