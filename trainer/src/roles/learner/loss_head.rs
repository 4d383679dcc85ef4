//! The end of a pass with gradients: a head with its loss.
//!
//! ```text
//! hidden states that predict tokens -> head: values of each token -> loss -> its derivatives -> gradients
//! ```
//! A learner does the rest, so a loss that needs another head is one implementation of [`LossHead`].
//!
//! Legend of shapes: c completion tokens of a micro-batch, d hidden size.

use rlt_parallel::Ranks;
use rlt_parallel::schedule::DecoderPass;
use tch::Tensor;

use super::deferred_loss::DeferredLoss;
use super::error::LearnerError;
use super::gradients::EmbeddingAndHeadGradients;
use super::micro_batch::MicroBatch;

/// The decoder below a head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadContext<'a> {
    pub model: DecoderPass<'a>,
    /// Gradients of the decoder's own head, to which a head that computes with its weight adds.
    pub outer_gradients: &'a EmbeddingAndHeadGradients,
    /// The ranks that train together.
    pub ranks: &'a Ranks,
    /// Factor by which a head multiplies the derivatives of its loss: the loss scale.
    pub scale: f64,
}

/// A head with its loss.
pub(crate) trait LossHead {
    /// Summands of a micro-batch in the report of an update.
    type Sums;

    /// Computes the loss of a micro-batch from the hidden states `[c, d]`, after the final norm, that predict
    /// its tokens. Adds the gradients of the head's weights, and returns the gradient of the hidden states
    /// with the loss. An update calls it for each of this rank's micro-batches, in order.
    ///
    /// # Errors
    /// When the loss does not fit the micro-batch, a kernel refuses its input, or a rank is lost.
    fn forward_backward(
        &mut self,
        hidden_cd: &Tensor,
        micro_batch: &MicroBatch,
        context: &HeadContext<'_>,
    ) -> Result<(Tensor, DeferredLoss<Self::Sums>), LearnerError>;
}

/// Derivatives of a loss multiplied by `factor`, a power of two.
pub(crate) fn scaled(values: &[f64], factor: f64) -> Vec<f32> {
    values.iter().map(|value| (*value * factor) as f32).collect()
}
