//! A head without weights, which pulls hidden states to zero.
//!
//! Legend of shapes: c completion tokens of a micro-batch, d hidden size.

use tch::{Kind, Tensor};

use crate::roles::learner::{DeferredLoss, HeadContext, LearnerError, LossHead, MicroBatch};

/// Half the squared norm of the hidden states that predict tokens, as a mean over the tokens of an update.
pub(super) struct HiddenSquares {
    /// Number of completion tokens in all micro-batches of the update.
    pub(super) num_tokens: usize,
}

impl LossHead for HiddenSquares {
    type Sums = f64;

    fn forward_backward(
        &mut self,
        hidden_cd: &Tensor,
        _: &MicroBatch,
        context: &HeadContext<'_>,
    ) -> Result<(Tensor, DeferredLoss<f64>), LearnerError> {
        let weight = 1.0 / self.num_tokens as f64;
        let squares = hidden_cd.square().sum(Kind::Double).double_value(&[]);
        let grad_cd = hidden_cd.detach() * (weight * context.scale);
        Ok((grad_cd, DeferredLoss::evaluated(0.5 * weight * squares)))
    }
}
