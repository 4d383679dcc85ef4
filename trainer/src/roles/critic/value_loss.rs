//! The critic's head with its loss: the value of each completion token, the value loss, and the gradients of
//! both. On a GPU the host evaluates the loss in the order of the device's stream, and no thread waits
//! between micro-batches.
//!
//! Legend of shapes: c completion tokens of a micro-batch, d hidden size.

use std::sync::{Arc, Mutex, PoisonError};

use rlt_core::batch::Batch;
use rlt_core::loss::{Aggregation, Denominators, LossError, ValueLossInputs, value_loss};
use rlt_core::rows::Rows;
use rlt_torch::HostCallbacks;
use tch::{Device, Kind, Tensor};

use crate::roles::learner::{DeferredLoss, HeadContext, LearnerError, LossHead, MicroBatch, scaled};

/// Targets of the critic, one number for each completion token of the batch.
#[derive(Clone, Copy)]
pub(super) struct Targets<'a> {
    /// Value of each token before the update.
    pub(super) values: &'a [f64],
    /// Return of each token, to which the values are fitted.
    pub(super) returns: &'a [f64],
}

/// The value loss of one optimizer update.
pub(super) struct ValueLoss<'a> {
    /// The value head, f32 `[d]`.
    pub(super) head_d: &'a Tensor,
    pub(super) batch: &'a Batch,
    pub(super) targets: Targets<'a>,
    pub(super) denominators: Denominators,
    /// Clip range of the loss.
    pub(super) clip: f64,
}

/// Summands of a micro-batch in the report of the critic's update.
pub(super) struct ValueSums {
    pub(super) loss: f64,
    pub(super) num_clipped: f64,
    pub(super) prediction_sum: f64,
    pub(super) num_tokens: f64,
}

/// Computes the values f32 `[c]` of hidden states `[c, d]`.
pub(super) fn values_of(hidden_cd: &Tensor, head_d: &Tensor) -> Tensor {
    hidden_cd.to_kind(Kind::Float).mv(head_d)
}

impl LossHead for ValueLoss<'_> {
    type Sums = ValueSums;

    fn forward_backward(
        &mut self,
        hidden_cd: &Tensor,
        micro_batch: &MicroBatch,
        context: &HeadContext<'_>,
    ) -> Result<(Tensor, DeferredLoss<ValueSums>), LearnerError> {
        let hidden_cd = hidden_cd.detach().set_requires_grad(true);
        let values_c = values_of(&hidden_cd, self.head_d);
        let loss = self.of_micro_batch(micro_batch);
        let (derivative_c, loss) = loss.derivative(&values_c.detach(), micro_batch, context)?;
        rlt_torch::backward(&values_c, &derivative_c);
        Ok((hidden_cd.grad(), loss))
    }
}

impl ValueLoss<'_> {
    /// Gathers the targets of a micro-batch from those of the batch.
    fn of_micro_batch(&self, micro_batch: &MicroBatch) -> MicroBatchLoss {
        MicroBatchLoss {
            rows: micro_batch.rows.clone(),
            old_values: self.batch.gather(&micro_batch.row_idxs, self.targets.values),
            returns: self.batch.gather(&micro_batch.row_idxs, self.targets.returns),
            denominators: self.denominators,
            clip: self.clip,
        }
    }
}

/// The value loss of a micro-batch, with one target for each completion token of all its rows.
struct MicroBatchLoss {
    rows: Rows,
    old_values: Vec<f64>,
    returns: Vec<f64>,
    denominators: Denominators,
    clip: f64,
}

/// Summands of a loss; `None` until it was evaluated.
type Evaluated = Arc<Mutex<Option<Result<ValueSums, LossError>>>>;

impl MicroBatchLoss {
    /// Computes the scaled derivative of the loss with respect to the values f32 `[c]` of this rank's tokens,
    /// on their device.
    fn derivative(
        self,
        values_c: &Tensor,
        micro_batch: &MicroBatch,
        context: &HeadContext<'_>,
    ) -> Result<(Tensor, DeferredLoss<ValueSums>), LearnerError> {
        if values_c.device().is_cuda() && context.ranks.sp_group().is_none() {
            return self.derivative_in_stream(values_c, micro_batch, context.scale);
        }
        let own_values = values_c.to_device(Device::Cpu);
        let mut values = micro_batch.spread(rlt_torch::f32_slice(&own_values)?);
        context.ranks.all_reduce_over_sp(&mut values)?;
        let (derivatives, sums) = self.evaluate(&values)?;
        let derivatives = scaled(&micro_batch.local_values(&derivatives), context.scale);
        let derivative_c = Tensor::from_slice(&derivatives).to_device(values_c.device());
        Ok((derivative_c, DeferredLoss::evaluated(sums)))
    }

    /// Does the same as [`Self::derivative`] without waiting: the stream calls the host with the
    /// micro-batch's values, f32 `[c]` on a GPU.
    fn derivative_in_stream(
        self,
        values_c: &Tensor,
        micro_batch: &MicroBatch,
        scale: f64,
    ) -> Result<(Tensor, DeferredLoss<ValueSums>), LearnerError> {
        let (predicted, num_tokens) = (micro_batch.predicted.clone(), micro_batch.rows.num_tokens());
        let evaluated = Evaluated::default();
        let kept = Arc::clone(&evaluated);
        let mut calls = HostCallbacks::new();
        let derivative_c = calls.compute(values_c, values_c.numel(), move |values, derivatives| {
            let result = self.evaluate(&predicted.spread(values, num_tokens)).map(|(all, sums)| {
                derivatives.copy_from_slice(&scaled(&predicted.local_values(&all), scale));
                sums
            });
            *kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        })?;
        let loss = DeferredLoss::in_stream(calls, move || {
            let result = evaluated.lock().unwrap_or_else(PoisonError::into_inner).take();
            Ok(result.ok_or(LearnerError::LossPanicked)??)
        });
        Ok((derivative_c, loss))
    }

    /// Computes the loss and its derivative with respect to each prediction.
    fn evaluate(&self, predictions: &[f64]) -> Result<(Vec<f64>, ValueSums), LossError> {
        let Self { rows, old_values, returns, denominators, clip } = self;
        let inputs = ValueLossInputs { rows, predictions, old_values, returns };
        let loss = value_loss(&inputs, *clip, Aggregation::TokenMean, denominators)?;
        let counted = rows.valid(0..rows.num_tokens());
        let sums = ValueSums {
            loss: loss.loss,
            num_clipped: loss.num_clipped as f64,
            prediction_sum: counted.map(|token| predictions[token]).sum::<f64>(),
            num_tokens: rows.num_valid_tokens() as f64,
        };
        Ok((loss.gradient, sums))
    }
}
