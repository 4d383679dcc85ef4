//! The policy's head with its loss: log-probs and entropies chunk by chunk, the loss of each chunk, and the
//! gradients of both, so that logits are computed only once. On a GPU the host evaluates the loss in the
//! order of the device's stream, and no thread waits between micro-batches.
//!
//! Legend of shapes: c completion tokens of a micro-batch, d hidden size, v vocabulary.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use rlt_core::loss::{LossError, LossOutputs, PreparedLoss};
use rlt_decoder::Adapter;
use rlt_torch::{ChunkLoss, DeviceHead, HostCallbacks};
use tch::Tensor;

use super::chunked_loss::{ChunkedLoss, PolicySums};
use crate::roles::learner::{DeferredLoss, HeadContext, LearnerError, MicroBatch};

/// Evaluates the loss of the completion tokens in a range, by their log-probs and entropies.
pub type EvaluateLoss = dyn FnMut(Range<usize>, &[f32], &[f32]) -> Result<LossOutputs, LossError> + Send;

/// Settings of the policy's head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PolicyHead {
    /// Divisor of the logits, as in the rollout.
    pub(super) temperature: f64,
    /// Number of tokens whose logits exist at the same time.
    pub(super) chunk_tokens: usize,
}

impl PolicyHead {
    /// Computes the loss of a micro-batch on a CPU: the gradient of its predicting hidden states `[c, d]`,
    /// and its sums.
    ///
    /// # Errors
    /// When the loss does not fit the micro-batch.
    pub(crate) fn evaluate(
        self,
        hidden_cd: &Tensor,
        micro_batch: &MicroBatch,
        loss: &PreparedLoss<'_>,
        context: &HeadContext<'_>,
    ) -> Result<(Tensor, PolicySums), LearnerError> {
        let evaluate = |tokens: Range<usize>, logprobs: &[f32], entropies: &[f32]| {
            loss.evaluate(tokens, logprobs, entropies)
        };
        let mut chunked = ChunkedLoss::new(micro_batch, context.scale, evaluate);
        let mut per_chunk = |chunk: Range<usize>, logprobs: &[f32], entropies: &[f32]| {
            let (mut by_logprob, mut by_entropy) = (vec![0.0; chunk.len()], vec![0.0; chunk.len()]);
            let derivatives = [by_logprob.as_mut_slice(), &mut by_entropy];
            chunked.add(chunk, [logprobs, entropies], derivatives);
            (by_logprob, by_entropy)
        };
        let (model, decoder) = (context.model, context.model.decoder);
        let weight_vd = decoder.compute_head_weight(Adapter::On);
        let grad_cd = model.with_head(&weight_vd, |weight_vd| {
            rlt_torch::head_forward_backward(
                hidden_cd,
                weight_vd,
                &micro_batch.targets,
                decoder.distribution(self.temperature),
                self.chunk_tokens,
                context.outer_gradients.head().as_mut(),
                &mut per_chunk,
            )
        })?;
        Ok((model.sum_of_head(grad_cd)?, chunked.finish()?))
    }

    /// Does the same as [`Self::evaluate`] on a GPU, without waiting: the stream calls `evaluate`, which owns
    /// its inputs, for each chunk. The gradient is valid for later work on the stream.
    ///
    /// # Errors
    /// When the device refuses a call.
    pub(crate) fn evaluate_in_stream(
        self,
        hidden_cd: &Tensor,
        micro_batch: &MicroBatch,
        evaluate: Box<EvaluateLoss>,
        context: &HeadContext<'_>,
    ) -> Result<(Tensor, DeferredLoss<PolicySums>), LearnerError> {
        let chunked = Arc::new(Mutex::new(ChunkedLoss::new(micro_batch, context.scale, evaluate)));
        let (mut calls, mut num_chunks) = (HostCallbacks::new(), 0);
        let loss_of = |chunk: Range<usize>| -> ChunkLoss {
            num_chunks += 1;
            let chunked = Arc::clone(&chunked);
            Box::new(move |numbers, derivatives| {
                let mut chunked = chunked.lock().unwrap_or_else(PoisonError::into_inner);
                chunked.add(chunk, numbers, derivatives);
            })
        };
        let model = context.model;
        let weight_vd = model.decoder.compute_head_weight(Adapter::On);
        let grad_cd = model.with_head(&weight_vd, |weight| {
            let head = DeviceHead {
                hidden_cd,
                weight,
                targets_c: &micro_batch.targets_c,
                temperature: self.temperature,
                chunk: self.chunk_tokens,
            };
            head.forward_backward(context.outer_gradients.head(), &mut calls, loss_of)
        })?;
        let grad_cd = model.sum_of_head(grad_cd)?;
        let loss = DeferredLoss::in_stream(calls, move || {
            let mut chunked = chunked.lock().unwrap_or_else(PoisonError::into_inner);
            if chunked.misses_chunks(num_chunks) {
                return Err(LearnerError::LossPanicked);
            }
            Ok(chunked.finish()?)
        });
        Ok((grad_cd, loss))
    }
}
