//! Scores of the policy without gradients: log-probs and entropies of completion tokens, and sums of squared
//! probabilities. Passes over micro-batches are in [`crate::roles::learner::scoring`].
//!
//! Legend of shapes: c completion tokens of a micro-batch, d hidden size, v vocabulary.

use rlt_core::batch::Batch;
use rlt_decoder::Adapter;
use rlt_parallel::schedule::DecoderPass;
use rlt_torch::DeviceHead;
use tch::{Kind, Tensor};

use super::{Actor, TokenScores};
use crate::roles::learner::scoring::{Scoring, TokenValues};
use crate::roles::learner::{LearnerError, MicroBatch};

impl Actor {
    /// Scores every completion token of `batch` under the actor (`Adapter::On`) or the reference
    /// (`Adapter::Off`), in micro-batches of at most `max_tokens` tokens for each rank of a sequence-parallel
    /// group.
    ///
    /// # Errors
    /// When a sequence alone is longer than a micro-batch may be, or a rank is lost.
    pub fn score(
        &self,
        batch: &Batch,
        adapter: Adapter,
        max_tokens: usize,
    ) -> Result<TokenScores, LearnerError> {
        let routes = self.learner.route_comparison().filter(|_| adapter == Adapter::On);
        let ranks = match adapter {
            Adapter::On => &self.scoring_ranks,
            Adapter::Off => &self.reference_ranks,
        };
        let model = DecoderPass { sp_group: ranks.sp_group(), ..self.learner.model() };
        self.score_by(Scoring { model, ranks, adapter, routes: routes.as_deref() }, batch, max_tokens)
    }

    /// Scores a batch under another decoder without an adapter, with this actor's head. The pass has the
    /// sequence-parallel group of the reference, whatever that of `model` is.
    ///
    /// # Errors
    /// When a sequence alone is longer than `max_tokens`, a kernel refuses its input, or a rank is lost.
    pub(crate) fn score_with(
        &self,
        model: DecoderPass<'_>,
        batch: &Batch,
        max_tokens: usize,
    ) -> Result<TokenScores, LearnerError> {
        let ranks = &self.reference_ranks;
        let model = DecoderPass { sp_group: ranks.sp_group(), ..model };
        self.score_by(Scoring { model, ranks, adapter: Adapter::Off, routes: None }, batch, max_tokens)
    }

    fn score_by(
        &self,
        scoring: Scoring<'_>,
        batch: &Batch,
        max_tokens: usize,
    ) -> Result<TokenScores, LearnerError> {
        let head = self.logprobs_and_entropies(scoring.model, scoring.adapter);
        let [logprobs, entropies] = scoring.batch(batch, max_tokens, head)?;
        Ok(TokenScores { logprobs, entropies })
    }

    /// Scores this rank's micro-batches of `passes` without gradients. Every rank of the sequence-parallel
    /// group gets all completion tokens of each micro-batch.
    ///
    /// # Errors
    /// When a kernel refuses its input, or a rank is lost.
    pub fn score_passes(
        &self,
        passes: &[Option<MicroBatch>],
        adapter: Adapter,
    ) -> Result<Vec<TokenScores>, LearnerError> {
        let (model, ranks) = (self.learner.model(), self.learner.ranks());
        let head = self.logprobs_and_entropies(model, adapter);
        let scores = Scoring { model, ranks, adapter, routes: None }.passes(passes, head)?;
        let over_stream = |[mut logprobs, mut entropies]: [Vec<f64>; 2]| {
            self.learner.ranks().all_reduce_over_sp(&mut logprobs)?;
            self.learner.ranks().all_reduce_over_sp(&mut entropies)?;
            Ok(TokenScores { logprobs, entropies })
        };
        scores.into_iter().map(over_stream).collect()
    }

    fn logprobs_and_entropies(
        &self,
        model: DecoderPass<'_>,
        adapter: Adapter,
    ) -> impl Fn(&Tensor, &MicroBatch) -> Result<TokenValues<2>, rlt_torch::Error> {
        let decoder = model.decoder;
        let (temperature, chunk) = (self.head.temperature, self.head.chunk_tokens);
        move |predicting_cd, micro_batch| {
            let weight_vd = decoder.compute_head_weight(adapter);
            if predicting_cd.device().is_cuda() {
                let (hidden_cd, targets_c) = (predicting_cd, &micro_batch.targets_c);
                let numbers = model.with_head(&weight_vd, |weight| {
                    DeviceHead { hidden_cd, weight, targets_c, temperature, chunk }.forward()
                })?;
                return Ok(TokenValues::OnDevice(numbers));
            }
            let targets = &micro_batch.targets;
            let by = decoder.distribution(temperature);
            let (logprobs, entropies) = model.with_head(&weight_vd, |weight_vd| {
                rlt_torch::head_forward(predicting_cd, weight_vd, targets, by, chunk)
            })?;
            Ok(TokenValues::OnHost([logprobs, entropies]))
        }
    }

    /// Computes the sum of squared probabilities over the vocabulary at every completion token of `batch`.
    ///
    /// # Errors
    /// When a sequence alone is longer than `max_tokens`.
    pub fn sum_pi_squared(&self, batch: &Batch, max_tokens: usize) -> Result<Vec<f64>, LearnerError> {
        let scoring = self.scoring();
        let [sums] = scoring.batch(batch, max_tokens, |hidden_cd, _| {
            let chunks = hidden_cd.split(self.head.chunk_tokens as i64, 0);
            let sums = chunks.iter().map(|chunk_cd| {
                let logits_cv = self.learner.decoder().logits(chunk_cd, Adapter::On).to_kind(Kind::Float);
                let logits_cv = logits_cv / self.head.temperature;
                if let Some(tp) = scoring.model.tensor_parallel() {
                    return rlt_torch::sum_of_squares(&logits_cv, &|own| tp.group.gather_statistics(own));
                }
                Ok(logits_cv.softmax(-1, Kind::Float).square().sum_dim_intlist(-1, false, Kind::Float))
            });
            TokenValues::of(&Tensor::cat(&sums.collect::<Result<Vec<_>, _>>()?, 0))
        })?;
        Ok(sums)
    }
}
