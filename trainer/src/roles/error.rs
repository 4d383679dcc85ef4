//! Errors that end a step.

use rlt_api::ExitCode;
use rlt_data::DataError;
use rlt_parallel::{DigestError, RankError};

/// An error that can end a step. Each role implements it for its own error.
pub trait StepFault: std::error::Error + Send + Sync + 'static {
    /// Says what failed, as the message of the step's error: "failed to generate".
    fn act(&self) -> &'static str;

    /// Returns the exit code of a run that ends with this error, unless one of its causes is more specific.
    fn exit_code(&self) -> ExitCode {
        ExitCode::Failure
    }
}

/// A step failed.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant is its message")]
pub enum StepError {
    #[error("the run was asked to stop while it sampled")]
    Interrupted,
    #[error("the job has no prompts to sample from")]
    NoPrompts,
    #[error("the job has no demonstrations to learn from")]
    NoDemonstrations,
    #[error("the job has no preferences to learn from")]
    NoPreferences,
    #[error("the job has no critic")]
    WithoutCritic,
    #[error("no completion of the step has a valid reward: {example}")]
    NoRewards { example: String },
    /// A role, or the arithmetic between two roles, failed.
    #[error("{act}")]
    Failed { act: &'static str, exit_code: ExitCode, source: Box<dyn std::error::Error + Send + Sync> },
    /// An error of a recipe, or of the run around it.
    #[error(transparent)]
    Other(#[from] Box<dyn std::error::Error + Send + Sync>),
}

impl<E: StepFault> From<E> for StepError {
    fn from(error: E) -> Self {
        Self::Failed { act: error.act(), exit_code: error.exit_code(), source: Box::new(error) }
    }
}

impl StepError {
    /// Returns the exit code of a run that ends with this error, unless one of its causes is more specific.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Failed { exit_code, .. } => *exit_code,
            Self::NoPrompts | Self::NoDemonstrations | Self::NoPreferences | Self::WithoutCritic => {
                ExitCode::BadConfig
            }
            Self::Interrupted | Self::NoRewards { .. } | Self::Other(_) => ExitCode::Failure,
        }
    }
}

impl StepFault for DataError {
    fn act(&self) -> &'static str {
        "failed to read the data"
    }

    fn exit_code(&self) -> ExitCode {
        if self.is_io() { ExitCode::RetryableIo } else { ExitCode::BadConfig }
    }
}

impl StepFault for RankError {
    fn act(&self) -> &'static str {
        "failed to communicate with the other ranks"
    }
}

impl StepFault for DigestError {
    fn act(&self) -> &'static str {
        "failed to compute digests of weights"
    }
}

impl StepFault for rlt_core::advantage::AdvantageError {
    fn act(&self) -> &'static str {
        "failed to estimate advantages"
    }
}

impl StepFault for rlt_core::importance::ImportanceError {
    fn act(&self) -> &'static str {
        "failed to compute the rollout correction"
    }
}

impl StepFault for rlt_core::loss::LossError {
    fn act(&self) -> &'static str {
        "failed to evaluate the loss"
    }
}

impl StepFault for rlt_core::rows::RowsError {
    fn act(&self) -> &'static str {
        "failed to pack the batch"
    }
}

#[cfg(test)]
mod tests;
