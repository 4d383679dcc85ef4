//! The loss of micro-batches on a GPU: the host evaluates it in the order of the device's stream, so that no
//! thread waits between micro-batches.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use rlt_core::loss::{LossError, LossOutputs};
use rlt_torch::{ChunkLoss, DeviceHead, HostCallbacks};
use tch::Tensor;

use super::Actor;
use super::loss_sums::{Accumulated, LossSums};
use crate::model::Adapter;
use crate::roles::learner::{Learner, LearnerError, MicroBatch, PredictedTokens};

/// Evaluates the loss of the completion tokens in a range, by their log-probs and entropies.
pub type EvaluateLoss = dyn FnMut(Range<usize>, &[f32], &[f32]) -> Result<LossOutputs, LossError> + Send;

/// The summands of a micro-batch in an update: known, or pending on the device's stream.
#[derive(Debug)]
pub enum PendingLoss {
    /// Evaluated on the CPU.
    Known(Accumulated),
    /// Evaluated in the order of the stream.
    InStream(StreamLoss),
}

impl PendingLoss {
    /// Waits for the stream unless it is past the micro-batch already.
    ///
    /// # Errors
    /// As [`StreamLoss::finish`].
    pub fn finish(self) -> Result<Accumulated, LearnerError> {
        match self {
            Self::Known(accumulated) => Ok(accumulated),
            Self::InStream(loss) => loss.finish(),
        }
    }
}

/// The summands of a micro-batch in an update, pending on the device's stream.
pub struct StreamLoss {
    calls: HostCallbacks,
    evaluation: Arc<Mutex<Evaluation>>,
    num_chunks: usize,
}

struct Evaluation {
    sums: LossSums,
    predicted: PredictedTokens,
    evaluate: Box<EvaluateLoss>,
}

impl std::fmt::Debug for StreamLoss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StreamLoss of {} chunks", self.num_chunks)
    }
}

impl StreamLoss {
    /// Waits for the stream unless it is past the micro-batch already, as it is when something was read from
    /// the device since.
    ///
    /// # Errors
    /// When the loss did not fit the micro-batch, or the device failed.
    pub fn finish(mut self) -> Result<Accumulated, LearnerError> {
        self.calls.wait()?;
        let mut evaluation = self.evaluation.lock().unwrap_or_else(PoisonError::into_inner);
        if evaluation.sums.misses_chunks(self.num_chunks) {
            return Err(LearnerError::LossPanicked);
        }
        Ok(evaluation.sums.finish()?)
    }
}

impl Actor {
    /// [`Self::accumulate`] on a GPU, without waiting: the stream calls `evaluate` for each chunk, which owns
    /// its inputs. The gradient is valid for later work of the stream.
    ///
    /// # Errors
    /// When the device refuses a call.
    pub fn accumulate_in_stream(
        &self,
        micro_batch: &MicroBatch,
        evaluate: Box<EvaluateLoss>,
    ) -> Result<StreamLoss, LearnerError> {
        let predicted = micro_batch.predicted.clone();
        let evaluation =
            Evaluation { sums: LossSums::of(micro_batch, self.loss_scale.factor()), predicted, evaluate };
        let mut pending = StreamLoss {
            calls: HostCallbacks::new(),
            evaluation: Arc::new(Mutex::new(evaluation)),
            num_chunks: 0,
        };
        self.forward_backward().accumulate(micro_batch, |predicting_cd| {
            let grad_cd = self.head_in_stream(predicting_cd, micro_batch, &mut pending)?;
            Ok((grad_cd, ()))
        })?;
        Ok(pending)
    }

    /// The gradient of the hidden states that predict, `[c, d]`.
    fn head_in_stream(
        &self,
        predicting_cd: &Tensor,
        micro_batch: &MicroBatch,
        pending: &mut StreamLoss,
    ) -> Result<Tensor, LearnerError> {
        let (model, weight_vd) = (self.model(), self.decoder.compute_head_weight(Adapter::On));
        let StreamLoss { calls, evaluation, num_chunks } = pending;
        let loss_of = |chunk: Range<usize>| -> ChunkLoss {
            *num_chunks += 1;
            let evaluation = Arc::clone(evaluation);
            Box::new(move |numbers, derivatives| {
                let mut evaluation = evaluation.lock().unwrap_or_else(PoisonError::into_inner);
                let Evaluation { sums, predicted, evaluate } = &mut *evaluation;
                sums.add(predicted, chunk, numbers, derivatives, evaluate);
            })
        };
        let grad_cd = model.with_head(&weight_vd, |weight| {
            let head = DeviceHead {
                hidden_cd: predicting_cd,
                weight,
                targets_c: &micro_batch.targets_c,
                temperature: self.options.temperature,
                chunk: self.options.head_chunk_tokens,
            };
            head.forward_backward(self.outer_gradients.head(), calls, loss_of)
        })?;
        Ok(model.sum_of_head(grad_cd)?)
    }
}
