//! Numbers of completion tokens, without gradients: log-probs and entropies, squared probabilities, a
//! critic's values. What is made of a hidden state is the caller's; how layers are scheduled is in
//! [`islands`].
//!
//! Legend of shapes: c completion tokens of a micro-batch, d hidden size, v vocabulary.

use rlt_core::batch::Batch;
use tch::{Device, Kind, Tensor, no_grad};

use super::islands::{self, Model};
use super::{Actor, ActorError, MicroBatch, TokenScores};
use crate::model::{Adapter, Decoder};
use crate::parallel::Ranks;
use crate::reference::FrozenPolicy;

/// `N` numbers for each completion token of `batch`, on every rank: what `of_hidden` makes of the hidden
/// states `[c, d]` that predict a micro-batch's tokens, one number a token. Micro-batches have at most
/// `max_tokens` tokens for each rank of a stream.
///
/// # Errors
/// When a sequence alone is longer than a micro-batch may be, a kernel refuses its input, or a rank is lost.
pub(crate) fn of_batch<const N: usize>(
    model: Model<'_>,
    ranks: &Ranks,
    batch: &Batch,
    adapter: Adapter,
    max_tokens: usize,
    of_hidden: impl Fn(&Tensor, &MicroBatch) -> Result<[Vec<f32>; N], rlt_torch::Error>,
) -> Result<[Vec<f64>; N], ActorError> {
    let rows: Vec<usize> = (0..batch.rows.num_rows()).collect();
    let own = MicroBatch::share(batch, &rows, model.decoder, max_tokens, ranks)?;
    let mut all = [(); N].map(|()| vec![0.0; batch.rows.num_tokens()]);
    for micro_batch in model.passes(ranks, own)? {
        let Some(micro_batch) = micro_batch else {
            model.pass_by()?;
            continue;
        };
        let numbers = of_micro_batch(model, &micro_batch, adapter, &of_hidden)?;
        for (all, numbers) in all.iter_mut().zip(&numbers) {
            batch.scatter(&micro_batch.row_idxs, numbers, all);
        }
    }
    ranks.sum(&mut all.each_mut())?;
    Ok(all)
}

/// What is predicted from this rank's tokens; 0 for other completion tokens of the micro-batch.
fn of_micro_batch<const N: usize>(
    model: Model<'_>,
    micro_batch: &MicroBatch,
    adapter: Adapter,
    of_hidden: impl Fn(&Tensor, &MicroBatch) -> Result<[Vec<f32>; N], rlt_torch::Error>,
) -> Result<[Vec<f64>; N], ActorError> {
    let context = model.decoder.context(&micro_batch.input, adapter);
    let normed_td = islands::infer(model, &micro_batch.input, &context)?;
    let numbers = no_grad(|| {
        let predicting_cd = normed_td.index_select(0, &micro_batch.predictors_c);
        of_hidden(&predicting_cd, micro_batch)
    })?;
    model.leave()?;
    Ok(numbers.map(|numbers| micro_batch.spread(&numbers)))
}

impl Actor {
    /// Scores every completion token of `batch` under the actor (`Adapter::On`) or the reference
    /// (`Adapter::Off`), in micro-batches of at most `max_tokens` tokens for each rank of a stream.
    ///
    /// # Errors
    /// When a sequence alone is longer than a micro-batch may be, or a rank is lost.
    pub fn score(
        &self,
        batch: &Batch,
        adapter: Adapter,
        max_tokens: usize,
    ) -> Result<TokenScores, ActorError> {
        self.score_through(self.scoring_model(), batch, adapter, max_tokens)
    }

    /// The same under another policy: a frozen reference, without an adapter.
    ///
    /// # Errors
    /// When a sequence alone is longer than `max_tokens`, a kernel refuses its input, or a rank is lost.
    pub fn score_with(
        &self,
        policy: &FrozenPolicy,
        batch: &Batch,
        max_tokens: usize,
    ) -> Result<TokenScores, ActorError> {
        let stream = self.scoring_ranks.stream();
        let model = Model { decoder: policy.decoder(), shards: policy.shards(), stream };
        self.score_through(model, batch, Adapter::Off, max_tokens)
    }

    fn score_through(
        &self,
        model: Model<'_>,
        batch: &Batch,
        adapter: Adapter,
        max_tokens: usize,
    ) -> Result<TokenScores, ActorError> {
        let score = self.logprobs_and_entropies(model.decoder);
        let [logprobs, entropies] = of_batch(model, &self.scoring_ranks, batch, adapter, max_tokens, score)?;
        Ok(TokenScores { logprobs, entropies })
    }

    /// Scores one micro-batch of [`Self::passes`] without gradients, all of its completion tokens on every
    /// rank of its stream; nothing for none.
    ///
    /// # Errors
    /// When a kernel refuses its input, or a rank is lost.
    pub fn score_micro_batch(
        &self,
        micro_batch: Option<&MicroBatch>,
        adapter: Adapter,
    ) -> Result<TokenScores, ActorError> {
        let model = self.model();
        let Some(micro_batch) = micro_batch else {
            return Ok(model.pass_by().map(|()| TokenScores::default())?);
        };
        let score = self.logprobs_and_entropies(model.decoder);
        let [mut logprobs, mut entropies] = of_micro_batch(model, micro_batch, adapter, score)?;
        self.ranks.sum_over_stream(&mut logprobs)?;
        self.ranks.sum_over_stream(&mut entropies)?;
        Ok(TokenScores { logprobs, entropies })
    }

    fn logprobs_and_entropies(
        &self,
        decoder: &Decoder,
    ) -> impl Fn(&Tensor, &MicroBatch) -> Result<[Vec<f32>; 2], rlt_torch::Error> {
        move |predicting_cd, micro_batch| {
            let (logprobs, entropies) = rlt_torch::head_forward(
                predicting_cd,
                &decoder.compute_head_weight(),
                &micro_batch.targets,
                self.options.temperature,
                self.options.head_chunk_tokens,
            )?;
            Ok([logprobs, entropies])
        }
    }

    /// Sum of the squared probabilities of the whole vocabulary at every completion token of `batch`.
    ///
    /// # Errors
    /// When a sequence alone is longer than `max_tokens`.
    pub fn sum_pi_squared(&self, batch: &Batch, max_tokens: usize) -> Result<Vec<f64>, ActorError> {
        let of_hidden = |predicting_cd: &Tensor, _: &MicroBatch| {
            let chunks = predicting_cd.split(self.options.head_chunk_tokens as i64, 0);
            let sums = chunks.iter().map(|chunk_cd| {
                let logits_cv = self.decoder.logits(chunk_cd).to_kind(Kind::Float) / self.options.temperature;
                logits_cv.softmax(-1, Kind::Float).square().sum_dim_intlist(-1, false, Kind::Float)
            });
            let sums_c = Tensor::cat(&sums.collect::<Vec<_>>(), 0).to_device(Device::Cpu);
            Ok([rlt_torch::f32_slice(&sums_c)?.to_vec()])
        };
        let (model, ranks) = (self.scoring_model(), &self.scoring_ranks);
        let [sums] = of_batch(model, ranks, batch, Adapter::On, max_tokens, of_hidden)?;
        Ok(sums)
    }
}
