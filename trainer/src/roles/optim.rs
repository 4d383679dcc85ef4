//! Optimizers over named leaf tensors: one step from gradients, applied or skipped.
//!
//! The learning rate is an argument of each step; schedules are in `rlt-core`. Moments are named tensors, so
//! that a checkpoint stores them like any weight.

mod adamw;
mod loss_scale;

pub(crate) use adamw::Clipped;
pub use adamw::{AdamW, AdamWOptions};
pub use loss_scale::LossScale;

/// The outcome of one optimizer step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StepOutcome {
    /// Parameters and moments were updated.
    Applied {
        /// L2 norm over all gradients, before clipping.
        grad_norm: f64,
    },
    /// A gradient held an infinity or a NaN, so nothing was changed: neither parameters nor moments nor
    /// counts.
    SkippedNonFinite,
    /// A gradient of a scaled loss was not finite, so nothing was changed. The loss scale was lowered, see
    /// [`LossScale`].
    SkippedOverflow,
}

/// An operation of the optimizer failed.
#[derive(Debug, thiserror::Error)]
pub enum OptimError {
    /// A tensor operation of libtorch failed.
    #[error("failed to {act} {name}")]
    Tensor {
        /// Name of the operation, as an imperative.
        act: &'static str,
        /// Name of the parameter.
        name: String,
        /// The error of libtorch.
        source: tch::TchError,
    },
    /// The norm of the gradients could not be computed.
    #[error("failed to compute the norm of the gradients")]
    Norm {
        /// The error of the kernel.
        source: rlt_torch::Error,
    },
    /// A parameter could not be updated.
    #[error("failed to update parameter {name}")]
    Step {
        /// Name of the parameter.
        name: String,
        /// The error of the kernel.
        source: rlt_torch::Error,
    },
    /// The storage to which moments are offloaded could not be created.
    #[error("failed to make offload storage for the optimizer's moments")]
    OffloadStorage {
        /// The file, and the system's error.
        source: rlt_torch::Error,
    },
    /// Moments could not be allocated, fetched or written back.
    #[error("failed to offload or fetch the moments of parameter {name}")]
    Moments {
        /// Name of the parameter.
        name: String,
        /// The operation, its object and the cause.
        source: rlt_torch::Error,
    },
    /// Offloaded parameters could not be fetched for a step, or written back after it.
    #[error("failed to fetch offloaded parameters, or to write them back")]
    Parameters(#[from] rlt_torch::Error),
    /// Two parameters have the same name.
    #[error("parameter {name} was given to the optimizer twice")]
    DuplicateParameter {
        /// The repeated name.
        name: String,
    },
}

impl OptimError {
    fn tensor(act: &'static str, name: &str) -> impl FnOnce(tch::TchError) -> Self {
        let name = name.to_owned();
        move |source| Self::Tensor { act, name, source }
    }
}
