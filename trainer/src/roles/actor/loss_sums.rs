//! Sums of a micro-batch's loss over chunks of tokens, on CPUs and GPUs alike.

use std::ops::Range;

use rlt_core::loss::{LossError, LossMetrics, LossOutputs};

use crate::roles::learner::{MicroBatch, PredictedTokens, scaled};

/// A micro-batch's summands of an update's results.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Accumulated {
    /// The micro-batch's share of the loss.
    pub loss: LossMetrics,
    /// Log-prob of each completion token of the micro-batch, before the update; 0 for tokens of other
    /// sequence-parallel ranks.
    pub logprobs: Vec<f64>,
}

/// The sums over a micro-batch's chunks so far.
#[derive(Debug)]
pub(super) struct LossSums {
    accumulated: Accumulated,
    /// Factor of the derivatives.
    factor: f64,
    failure: Option<LossError>,
    num_chunks: usize,
}

impl LossSums {
    /// Begins the sums of a loss that is multiplied by `factor` before its backward pass.
    pub(super) fn of(micro_batch: &MicroBatch, factor: f64) -> Self {
        let logprobs = vec![0.0; micro_batch.rows.num_tokens()];
        let accumulated = Accumulated { logprobs, ..Accumulated::default() };
        Self { accumulated, factor, failure: None, num_chunks: 0 }
    }

    /// Adds the loss of a chunk of the predicted tokens and writes its derivatives, over zeros.
    pub(super) fn add(
        &mut self,
        predicted: &PredictedTokens,
        chunk: Range<usize>,
        [logprobs, entropies]: [&[f32]; 2],
        [by_logprob, by_entropy]: [&mut [f32]; 2],
        mut evaluate: impl FnMut(Range<usize>, &[f32], &[f32]) -> Result<LossOutputs, LossError>,
    ) {
        for (here, tokens) in predicted.stretches(chunk) {
            let (logprobs, entropies) = (&logprobs[here.clone()], &entropies[here.clone()]);
            match evaluate(tokens.clone(), logprobs, entropies) {
                Ok(outputs) => {
                    self.accumulated.loss += outputs.metrics;
                    self.accumulated.logprobs[tokens].copy_from_slice(&widen(logprobs));
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
    pub(super) fn finish(&mut self) -> Result<Accumulated, LossError> {
        match self.failure.take() {
            Some(error) => Err(error),
            None => Ok(std::mem::take(&mut self.accumulated)),
        }
    }
}

fn widen(values: &[f32]) -> Vec<f64> {
    values.iter().map(|value| f64::from(*value)).collect()
}
