//! Errors of passes over a batch, and of the updates that they end in.

use rlt_api::ExitCode;
use rlt_core::loss::LossError;
use rlt_core::packing::PackingError;
use rlt_parallel::RankError;

use crate::roles::error::StepFault;
use crate::roles::optim::OptimError;

/// A decoder could not be computed or trained.
#[derive(Debug, thiserror::Error)]
pub enum LearnerError {
    /// A batch cannot be split under the token budget.
    #[error("failed to split the batch into micro-batches")]
    Packing(#[from] PackingError),
    /// The loss does not fit the micro-batch.
    #[error("failed to evaluate the loss")]
    Loss(#[from] LossError),
    /// A kernel refused its input.
    #[error("failed to run the loss head")]
    Kernel(#[source] rlt_torch::Error),
    /// The loss panicked on a thread of the driver.
    #[error("the loss of a micro-batch panicked")]
    LossPanicked,
    /// A rank was lost, or ranks failed to exchange tensors.
    #[error("failed to communicate with the other ranks")]
    Ranks(#[from] RankError),
    /// The optimizer failed.
    #[error("failed to apply the gradients")]
    Optimizer(#[from] OptimError),
}

impl StepFault for LearnerError {
    fn act(&self) -> &'static str {
        "failed to score the batch"
    }

    fn exit_code(&self) -> ExitCode {
        match self {
            Self::Packing(_) => ExitCode::BadConfig,
            _ => ExitCode::Failure,
        }
    }
}

impl From<rlt_torch::Error> for LearnerError {
    fn from(error: rlt_torch::Error) -> Self {
        match error {
            // A lost rank is not a kernel's fault.
            rlt_torch::Error::Collective(source) => Self::Ranks((*source).into()),
            other => Self::Kernel(other),
        }
    }
}
