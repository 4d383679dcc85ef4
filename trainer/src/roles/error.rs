//! Errors that end a step.

use rlt_api::ExitCode;

use crate::data::DataError;
use crate::parallel::RankError;
use crate::roles::critic::{CriticError, CriticSetupError};
use crate::roles::learner::LearnerError;
use crate::roles::reward::RewardModelError;
use crate::roles::rollout::EngineError;
use crate::roles::update::UpdateError;

/// A step failed.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant is its message")]
pub enum StepError {
    #[error("the run was asked to stop while it sampled")]
    Interrupted,
    #[error("failed to judge by a reward model")]
    RewardModel(#[from] RewardModelError),
    #[error("failed to generate")]
    Rollout(#[from] EngineError),
    #[error("failed to estimate advantages")]
    Advantage(#[from] rlt_core::advantage::AdvantageError),
    #[error("failed to pack the batch")]
    Rows(#[from] rlt_core::rows::RowsError),
    #[error("failed to compute the rollout correction")]
    Importance(#[from] rlt_core::importance::ImportanceError),
    #[error("failed to score the batch")]
    Actor(#[from] LearnerError),
    #[error("failed to update the actor")]
    Update(#[from] UpdateError),
    #[error("failed to create the critic")]
    CriticSetup(#[from] CriticSetupError),
    #[error("failed to update the critic")]
    Critic(#[from] CriticError),
    #[error("failed to communicate with the other ranks")]
    Ranks(#[from] RankError),
    #[error("the job has no prompts to sample from")]
    NoPrompts,
    #[error("the job has no demonstrations to learn from")]
    NoDemonstrations,
    #[error("the job has no preferences to learn from")]
    NoPreferences,
    #[error("failed to read the data")]
    Data(#[from] DataError),
    #[error("failed to evaluate the loss")]
    Loss(#[from] rlt_core::loss::LossError),
    #[error("the job has no critic")]
    WithoutCritic,
    #[error("no completion of the step has a valid reward: {example}")]
    NoRewards { example: String },
    /// An error of a recipe, or of the run around it.
    #[error(transparent)]
    Other(#[from] Box<dyn std::error::Error + Send + Sync>),
}

impl StepError {
    /// The exit code of a run that ends with this error, unless one of its causes is more specific.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::RewardModel(error) => error.exit_code(),
            Self::Data(error) if error.is_io() => ExitCode::RetryableIo,
            Self::Data(_) => ExitCode::BadConfig,
            Self::Rollout(EngineError::CacheTooSmall { .. }) => ExitCode::BadConfig,
            Self::Rollout(EngineError::NonFiniteLogits { .. }) => ExitCode::Diverged,
            Self::Actor(error) => error.exit_code(),
            Self::Update(error) => error.exit_code(),
            Self::Critic(error) => error.exit_code(),
            Self::NoPrompts | Self::NoDemonstrations | Self::NoPreferences | Self::WithoutCritic => {
                ExitCode::BadConfig
            }
            _ => ExitCode::Failure,
        }
    }
}
