//! The loss of a micro-batch: evaluated at once on a CPU, and on a GPU when the CUDA stream reaches it.

use rlt_torch::HostCallbacks;

use super::error::LearnerError;

/// Summands of a micro-batch in the report of an update: evaluated, or pending on the device's stream.
pub struct DeferredLoss<S>(State<S>);

enum State<S> {
    Evaluated(S),
    /// Summands that `take` returns once all `calls` are complete.
    InStream {
        calls: HostCallbacks,
        take: Box<dyn FnOnce() -> Result<S, LearnerError>>,
    },
}

impl<S> DeferredLoss<S> {
    /// Creates a loss that is evaluated already.
    pub(crate) fn evaluated(sums: S) -> Self {
        Self(State::Evaluated(sums))
    }

    /// Creates a loss that the host functions `calls` evaluate in the order of the device's stream. `take`
    /// returns its summands once all calls are complete.
    pub(crate) fn in_stream(
        calls: HostCallbacks,
        take: impl FnOnce() -> Result<S, LearnerError> + 'static,
    ) -> Self {
        Self(State::InStream { calls, take: Box::new(take) })
    }

    /// Waits until the loss is evaluated, and returns its summands. The wait is short if the host has read a
    /// value from the device since, because such a read already waits for the stream.
    ///
    /// # Errors
    /// When the loss did not fit the micro-batch, or the device failed.
    pub fn finish(self) -> Result<S, LearnerError> {
        match self.0 {
            State::Evaluated(sums) => Ok(sums),
            State::InStream { mut calls, take } => {
                calls.wait()?;
                take()
            }
        }
    }
}
