//! Passes without gradients over completion tokens: log-probs and entropies, sums of squared probabilities,
//! and a critic's values. The caller supplies the head; layers are scheduled in [`super::layer_schedule`]. On
//! a GPU, results are copied to the host while the next micro-batch is computed, and the host waits once for
//! all of them.
//!
//! Legend of shapes: c completion tokens of a micro-batch, d hidden size, v vocabulary.

use rlt_core::batch::Batch;
use rlt_torch::{DeviceHead, HostCallbacks};
use tch::{Device, Kind, Tensor, no_grad};

use super::layer_schedule::{self, DecoderPass};
use super::routes::RouteComparison;
use super::{Actor, ActorError, MicroBatch, TokenScores};
use crate::model::Adapter;
use crate::parallel::Ranks;
use crate::roles::reference::FrozenPolicy;

/// `N` values for each of the c tokens of a micro-batch.
pub(crate) enum TokenValues<const N: usize> {
    Here([Vec<f32>; N]),
    /// Values on a GPU, f32 `[N, c]`.
    OnDevice(Tensor),
}

/// `N` values per token, or an asynchronous copy of them from a GPU.
enum PendingScores<const N: usize> {
    Here([Vec<f32>; N]),
    /// Copy in pinned memory, f32 `[N * c]`.
    Fetched(Tensor),
}

impl TokenValues<1> {
    /// Takes one value per token, f32 `[c]`.
    pub(crate) fn of(numbers_c: &Tensor) -> Result<Self, rlt_torch::Error> {
        match numbers_c.device() {
            Device::Cpu => Ok(Self::Here([rlt_torch::f32_slice(numbers_c)?.to_vec()])),
            _ => Ok(Self::OnDevice(numbers_c.unsqueeze(0))),
        }
    }
}

impl<const N: usize> TokenValues<N> {
    /// Takes `N` values per token, f32 `[N, c]`.
    pub(crate) fn of_rows(numbers_nc: &Tensor) -> Result<Self, rlt_torch::Error> {
        if numbers_nc.device() != Device::Cpu {
            return Ok(Self::OnDevice(numbers_nc.shallow_clone()));
        }
        let numbers_nc = numbers_nc.contiguous();
        let all = rlt_torch::f32_slice(&numbers_nc)?;
        let len = all.len() / N;
        Ok(Self::Here(std::array::from_fn(|row| all[row * len..][..len].to_vec())))
    }

    fn fetch(self, calls: &mut HostCallbacks) -> Result<PendingScores<N>, rlt_torch::Error> {
        Ok(match self {
            Self::Here(numbers) => PendingScores::Here(numbers),
            Self::OnDevice(numbers) => PendingScores::Fetched(calls.fetch(&numbers.contiguous())?),
        })
    }
}

impl<const N: usize> PendingScores<N> {
    /// Returns the values of tokens that are predicted from this rank's tokens, once the copy is complete; 0
    /// for other completion tokens of the micro-batch.
    fn spread(&self, micro_batch: &MicroBatch) -> Result<[Vec<f64>; N], rlt_torch::Error> {
        match self {
            Self::Here(numbers) => Ok(numbers.each_ref().map(|numbers| micro_batch.spread(numbers))),
            Self::Fetched(pinned) => {
                let all = rlt_torch::f32_slice(pinned)?;
                let len = all.len() / N;
                Ok(std::array::from_fn(|at| micro_batch.spread(&all[at * len..][..len])))
            }
        }
    }
}

/// Computes `N` values for each completion token of `batch`, the same on every rank. `of_hidden` gets the
/// hidden states `[c, d]` that predict the tokens of a micro-batch. Micro-batches have at most `max_tokens`
/// tokens for each rank of a sequence-parallel group.
///
/// # Errors
/// When a sequence alone is longer than a micro-batch may be, a kernel refuses its input, or a rank is lost.
pub(crate) fn of_batch<const N: usize>(
    model: DecoderPass<'_>,
    ranks: &Ranks,
    batch: &Batch,
    adapter: Adapter,
    routes: Option<&RouteComparison>,
    max_tokens: usize,
    of_hidden: impl Fn(&Tensor, &MicroBatch) -> Result<TokenValues<N>, rlt_torch::Error>,
) -> Result<[Vec<f64>; N], ActorError> {
    let rows: Vec<usize> = (0..batch.rows.num_rows()).collect();
    let own = MicroBatch::share(batch, &rows, model.decoder, max_tokens, ranks)?;
    let passes = model.passes(ranks, own)?;
    let numbers = of_passes(model, &passes, adapter, routes, of_hidden)?;
    let mut all = [(); N].map(|()| vec![0.0; batch.rows.num_tokens()]);
    for (micro_batch, numbers) in passes.iter().flatten().zip(&numbers) {
        for (all, numbers) in all.iter_mut().zip(numbers) {
            batch.scatter(&micro_batch.row_idxs, numbers, all);
        }
    }
    ranks.all_reduce(&mut all.each_mut())?;
    Ok(all)
}

/// Returns the values of tokens that are predicted from this rank's tokens, for each of its micro-batches; 0
/// for their other completion tokens.
fn of_passes<const N: usize>(
    model: DecoderPass<'_>,
    passes: &[Option<MicroBatch>],
    adapter: Adapter,
    routes: Option<&RouteComparison>,
    of_hidden: impl Fn(&Tensor, &MicroBatch) -> Result<TokenValues<N>, rlt_torch::Error>,
) -> Result<Vec<[Vec<f64>; N]>, ActorError> {
    let mut calls = HostCallbacks::new();
    let mut arriving = Vec::with_capacity(passes.len());
    for micro_batch in passes {
        let Some(micro_batch) = micro_batch else {
            model.join_forward(adapter)?;
            continue;
        };
        let numbers = of_micro_batch(model, micro_batch, adapter, routes, &of_hidden)?;
        arriving.push(numbers.fetch(&mut calls)?);
    }
    calls.wait()?;
    let spread =
        passes.iter().flatten().zip(&arriving).map(|(micro_batch, numbers)| numbers.spread(micro_batch));
    Ok(spread.collect::<Result<_, _>>()?)
}

fn of_micro_batch<const N: usize>(
    model: DecoderPass<'_>,
    micro_batch: &MicroBatch,
    adapter: Adapter,
    routes: Option<&RouteComparison>,
    of_hidden: impl Fn(&Tensor, &MicroBatch) -> Result<TokenValues<N>, rlt_torch::Error>,
) -> Result<TokenValues<N>, ActorError> {
    let mut context = model.decoder.context(&micro_batch.input, adapter);
    context.routes = routes.map(|routes| routes.watch(micro_batch));
    let normed_td = layer_schedule::infer(model, &micro_batch.input, &mut context)?;
    routes.iter().for_each(|routes| routes.add(context.routes.take()));
    let numbers = no_grad(|| {
        let predicting_cd = normed_td.index_select(0, &micro_batch.predictors_c);
        of_hidden(&predicting_cd, micro_batch)
    })?;
    model.end_pass()?;
    Ok(numbers)
}

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
    ) -> Result<TokenScores, ActorError> {
        let routes = self.route_comparison.borrow().clone().filter(|_| adapter == Adapter::On);
        let ranks = match adapter {
            Adapter::On => &self.scoring_ranks,
            Adapter::Off => &self.reference_ranks,
        };
        let model = DecoderPass { sp_group: ranks.sp_group(), ..self.model() };
        self.score_through(model, batch, ranks, adapter, routes.as_deref(), max_tokens)
    }

    /// Scores a batch under a frozen reference policy without an adapter.
    ///
    /// # Errors
    /// When a sequence alone is longer than `max_tokens`, a kernel refuses its input, or a rank is lost.
    pub fn score_with(
        &self,
        policy: &FrozenPolicy,
        batch: &Batch,
        max_tokens: usize,
    ) -> Result<TokenScores, ActorError> {
        let ranks = &self.reference_ranks;
        let model =
            DecoderPass { decoder: policy.decoder(), shards: policy.shards(), sp_group: ranks.sp_group() };
        self.score_through(model, batch, ranks, Adapter::Off, None, max_tokens)
    }

    fn score_through(
        &self,
        model: DecoderPass<'_>,
        batch: &Batch,
        ranks: &Ranks,
        adapter: Adapter,
        routes: Option<&RouteComparison>,
        max_tokens: usize,
    ) -> Result<TokenScores, ActorError> {
        let score = self.logprobs_and_entropies(model, adapter);
        let [logprobs, entropies] = of_batch(model, ranks, batch, adapter, routes, max_tokens, score)?;
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
    ) -> Result<Vec<TokenScores>, ActorError> {
        let model = self.model();
        let score = self.logprobs_and_entropies(model, adapter);
        let scores = of_passes(model, passes, adapter, None, score)?;
        let over_stream = |[mut logprobs, mut entropies]: [Vec<f64>; 2]| {
            self.ranks.all_reduce_over_sp(&mut logprobs)?;
            self.ranks.all_reduce_over_sp(&mut entropies)?;
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
        let (temperature, chunk) = (self.options.temperature, self.options.head_chunk_tokens);
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
            Ok(TokenValues::Here([logprobs, entropies]))
        }
    }

    /// Computes the sum of squared probabilities over the vocabulary at every completion token of `batch`.
    ///
    /// # Errors
    /// When a sequence alone is longer than `max_tokens`.
    pub fn sum_pi_squared(&self, batch: &Batch, max_tokens: usize) -> Result<Vec<f64>, ActorError> {
        let (model, ranks) = (self.scoring_model(), &self.scoring_ranks);
        let of_hidden = |predicting_cd: &Tensor, _: &MicroBatch| {
            let chunks = predicting_cd.split(self.options.head_chunk_tokens as i64, 0);
            let sums = chunks.iter().map(|chunk_cd| {
                let logits_cv = self.decoder.logits(chunk_cd, Adapter::On).to_kind(Kind::Float);
                let logits_cv = logits_cv / self.options.temperature;
                if let Some(tp) = model.tensor_parallel() {
                    return rlt_torch::sum_of_squares(&logits_cv, &|own| tp.group.gather_statistics(own));
                }
                Ok(logits_cv.softmax(-1, Kind::Float).square().sum_dim_intlist(-1, false, Kind::Float))
            });
            TokenValues::of(&Tensor::cat(&sums.collect::<Result<Vec<_>, _>>()?, 0))
        };
        let [sums] = of_batch(model, ranks, batch, Adapter::On, None, max_tokens, of_hidden)?;
        Ok(sums)
    }
}
