//! The policy's loss of a micro-batch, evaluated chunk by chunk, on CPUs and GPUs alike.

use std::ops::Range;

use rlt_core::loss::{LossError, LossMetrics, LossOutputs};

use crate::roles::learner::{MicroBatch, PredictedTokens, scaled};

/// Summands of a micro-batch in the report of the policy's update.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PolicySums {
    /// The micro-batch's share of the loss.
    pub loss: LossMetrics,
    /// Log-prob of each completion token of the micro-batch, before the update; 0 for tokens of other
    /// sequence-parallel ranks.
    pub logprobs: Vec<f64>,
}

/// The loss of a micro-batch's tokens, with the sums over its chunks so far.
pub(super) struct ChunkedLoss<F> {
    /// Computes the loss of the completion tokens in a range, by their log-probs and entropies.
    evaluate: F,
    predicted: PredictedTokens,
    sums: PolicySums,
    /// Factor of the derivatives.
    factor: f64,
    failure: Option<LossError>,
    num_chunks: usize,
}

impl<F> ChunkedLoss<F>
where
    F: FnMut(Range<usize>, &[f32], &[f32]) -> Result<LossOutputs, LossError>,
{
    /// Begins the sums of a loss that is multiplied by `factor` before its backward pass.
    pub(super) fn new(micro_batch: &MicroBatch, factor: f64, evaluate: F) -> Self {
        let logprobs = vec![0.0; micro_batch.rows.num_tokens()];
        let sums = PolicySums { logprobs, ..PolicySums::default() };
        let predicted = micro_batch.predicted.clone();
        Self { evaluate, predicted, sums, factor, failure: None, num_chunks: 0 }
    }

    /// Adds the loss of a chunk of the predicted tokens and writes its derivatives, over zeros.
    pub(super) fn add(
        &mut self,
        chunk: Range<usize>,
        [logprobs, entropies]: [&[f32]; 2],
        [by_logprob, by_entropy]: [&mut [f32]; 2],
    ) {
        for (here, tokens) in self.predicted.stretches(chunk) {
            let (logprobs, entropies) = (&logprobs[here.clone()], &entropies[here.clone()]);
            match (self.evaluate)(tokens.clone(), logprobs, entropies) {
                Ok(outputs) => {
                    self.sums.loss += outputs.metrics;
                    self.sums.logprobs[tokens].copy_from_slice(&widen(logprobs));
                    by_logprob[here.clone()].copy_from_slice(&scaled(&outputs.dlogprobs, self.factor));
                    by_entropy[here].copy_from_slice(&scaled(&outputs.dentropies, self.factor));
                }
                Err(error) => self.failure = Some(error),
            }
        }
        self.num_chunks += 1;
    }

    /// Whether fewer chunks than `num_chunks` were added although the loss of none failed.
    pub(super) fn misses_chunks(&self, num_chunks: usize) -> bool {
        self.num_chunks != num_chunks && self.failure.is_none()
    }

    /// Takes the sums, or the failure of a chunk.
    pub(super) fn finish(&mut self) -> Result<PolicySums, LossError> {
        match self.failure.take() {
            Some(error) => Err(error),
            None => Ok(std::mem::take(&mut self.sums)),
        }
    }
}

fn widen(values: &[f32]) -> Vec<f64> {
    values.iter().map(|value| f64::from(*value)).collect()
}
