//! Passes without gradients over completion tokens, which compute some values of each: log-probs and
//! entropies, or a critic's values. The caller supplies the head; layers are scheduled in
//! [`rlt_parallel::schedule`]. On a GPU, results are copied to the host while the next micro-batch is
//! computed, and the host waits once for all of them.
//!
//! Legend of shapes: c completion tokens of a micro-batch, d hidden size.

use rlt_core::batch::Batch;
use rlt_decoder::Adapter;
use rlt_parallel::Ranks;
use rlt_parallel::schedule::{self, DecoderPass};
use rlt_torch::HostCallbacks;
use tch::{Device, Tensor, no_grad};

use super::error::LearnerError;
use super::micro_batch::MicroBatch;
use super::routes::RouteComparison;

/// `N` values for each of the c tokens of a micro-batch.
pub(crate) enum TokenValues<const N: usize> {
    OnHost([Vec<f32>; N]),
    /// Values on a GPU, f32 `[N, c]`.
    OnDevice(Tensor),
}

/// `N` values per token, or an asynchronous copy of them from a GPU.
enum PendingScores<const N: usize> {
    OnHost([Vec<f32>; N]),
    /// Copy in pinned memory, f32 `[N * c]`.
    Fetched(Tensor),
}

impl TokenValues<1> {
    /// Takes one value per token, f32 `[c]`.
    pub(crate) fn of(numbers_c: &Tensor) -> Result<Self, rlt_torch::Error> {
        match numbers_c.device() {
            Device::Cpu => Ok(Self::OnHost([rlt_torch::f32_slice(numbers_c)?.to_vec()])),
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
        Ok(Self::OnHost(std::array::from_fn(|row| all[row * len..][..len].to_vec())))
    }

    fn fetch(self, calls: &mut HostCallbacks) -> Result<PendingScores<N>, rlt_torch::Error> {
        Ok(match self {
            Self::OnHost(numbers) => PendingScores::OnHost(numbers),
            Self::OnDevice(numbers) => PendingScores::Fetched(calls.fetch(&numbers.contiguous())?),
        })
    }
}

impl<const N: usize> PendingScores<N> {
    /// Returns the values of tokens that are predicted from this rank's tokens, once the copy is complete; 0
    /// for other completion tokens of the micro-batch.
    fn spread(&self, micro_batch: &MicroBatch) -> Result<[Vec<f64>; N], rlt_torch::Error> {
        match self {
            Self::OnHost(numbers) => Ok(numbers.each_ref().map(|numbers| micro_batch.spread(numbers))),
            Self::Fetched(pinned) => {
                let all = rlt_torch::f32_slice(pinned)?;
                let len = all.len() / N;
                Ok(std::array::from_fn(|at| micro_batch.spread(&all[at * len..][..len])))
            }
        }
    }
}

/// Passes without gradients through a decoder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scoring<'a> {
    pub model: DecoderPass<'a>,
    /// Ranks that divide the rows of a batch, with the sequence-parallel groups of these passes.
    pub ranks: &'a Ranks,
    pub adapter: Adapter,
    /// Counters of the routers' choices; `None` while nothing counts them.
    pub routes: Option<&'a RouteComparison>,
}

impl Scoring<'_> {
    /// Computes `N` values for each completion token of `batch`, the same on every rank. `head` gets the
    /// hidden states `[c, d]` that predict the tokens of a micro-batch. Micro-batches have at most
    /// `max_tokens` tokens for each rank of a sequence-parallel group.
    ///
    /// # Errors
    /// When a sequence alone is longer than a micro-batch may be, a kernel refuses its input, or a rank is
    /// lost.
    pub(crate) fn batch<const N: usize>(
        self,
        batch: &Batch,
        max_tokens: usize,
        head: impl Fn(&Tensor, &MicroBatch) -> Result<TokenValues<N>, rlt_torch::Error>,
    ) -> Result<[Vec<f64>; N], LearnerError> {
        let rows: Vec<usize> = (0..batch.rows.num_rows()).collect();
        let own = MicroBatch::share(batch, &rows, self.model.decoder, max_tokens, self.ranks)?;
        let passes = self.model.passes(self.ranks, own)?;
        let numbers = self.passes(&passes, head)?;
        let mut all = [(); N].map(|()| vec![0.0; batch.rows.num_tokens()]);
        for (micro_batch, numbers) in passes.iter().flatten().zip(&numbers) {
            for (all, numbers) in all.iter_mut().zip(numbers) {
                batch.scatter(&micro_batch.row_idxs, numbers, all);
            }
        }
        self.ranks.all_reduce(&mut all.each_mut())?;
        Ok(all)
    }

    /// Returns the values of tokens that are predicted from this rank's tokens, for each of its
    /// micro-batches; 0 for their other completion tokens.
    ///
    /// # Errors
    /// When a kernel refuses its input, or a rank is lost.
    pub(crate) fn passes<const N: usize>(
        self,
        passes: &[Option<MicroBatch>],
        head: impl Fn(&Tensor, &MicroBatch) -> Result<TokenValues<N>, rlt_torch::Error>,
    ) -> Result<Vec<[Vec<f64>; N]>, LearnerError> {
        let mut calls = HostCallbacks::new();
        let mut arriving = Vec::with_capacity(passes.len());
        for micro_batch in passes {
            let Some(micro_batch) = micro_batch else {
                self.model.join_forward(self.adapter)?;
                continue;
            };
            let numbers = self.micro_batch(micro_batch, &head)?;
            arriving.push(numbers.fetch(&mut calls)?);
        }
        calls.wait()?;
        let spread =
            passes.iter().flatten().zip(&arriving).map(|(micro_batch, numbers)| numbers.spread(micro_batch));
        Ok(spread.collect::<Result<_, _>>()?)
    }

    fn micro_batch<const N: usize>(
        self,
        micro_batch: &MicroBatch,
        head: impl Fn(&Tensor, &MicroBatch) -> Result<TokenValues<N>, rlt_torch::Error>,
    ) -> Result<TokenValues<N>, LearnerError> {
        let Self { model, adapter, routes, .. } = self;
        let mut context = model.decoder.context(&micro_batch.input, adapter);
        context.routes = routes.map(|routes| routes.watch(micro_batch));
        let normed_td = schedule::infer(model, &micro_batch.input, &mut context)?;
        routes.iter().for_each(|routes| routes.add(context.routes.take()));
        let numbers = no_grad(|| {
            let predicting_cd = normed_td.index_select(0, &micro_batch.predictors_c);
            head(&predicting_cd, micro_batch)
        })?;
        model.end_pass()?;
        Ok(numbers)
    }
}
