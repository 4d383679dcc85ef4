//! A vocabulary head whose rows are sharded over ranks, so that each rank has the logits of different tokens.
//! Ranks exchange four statistics per position, from which each computes the statistics of the full
//! vocabulary; logits are not exchanged.
//!
//! Each rank computes u = logit / temperature, the maximum m of u, s = log sum e^(u - m), and the mean w of
//! `u - m` under the softmax of its u:
//!
//! ```text
//! M = max m        log S = log sum e^(m - M + s)        p = e^(m + s - M - log S)   the rank's share
//! log-prob = u of the target - M - log S                entropy = log S - sum p (w + m - M)
//! ```

use tch::{Kind, Tensor};

use crate::Error;
use crate::collectives::CollectiveError;
use crate::head::Chunk;

/// Function that all-gathers `[4, n]` of every rank to `[ranks, 4, n]`.
pub type GatherStatistics<'a> = dyn Fn(&Tensor) -> Result<Tensor, CollectiveError> + 'a;

/// Shard of the vocabulary on this rank.
#[derive(Clone, Copy)]
pub struct VocabularyShard<'a> {
    /// First token id of the shard.
    pub first: usize,
    /// Number of tokens in the full vocabulary.
    pub vocab_size: usize,
    /// Function that all-gathers the statistics of all ranks. Collective.
    pub gather: &'a GatherStatistics<'a>,
}

impl std::fmt::Debug for VocabularyShard<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VocabularyShard").field("first", &self.first).finish_non_exhaustive()
    }
}

/// Weight of a head, `[V, D]`: the full weight, or this rank's rows.
#[derive(Clone, Copy, Debug)]
pub struct HeadWeight<'a> {
    /// Rows of the weight.
    pub weight_vd: &'a Tensor,
    /// Shard of the vocabulary to which the rows belong; `None` for the full weight.
    pub shard: Option<VocabularyShard<'a>>,
}

impl<'a> From<&'a Tensor> for HeadWeight<'a> {
    /// Makes the weight of a full vocabulary.
    fn from(weight_vd: &'a Tensor) -> Self {
        Self { weight_vd, shard: None }
    }
}

impl HeadWeight<'_> {
    pub(crate) fn vocab_size(&self) -> i64 {
        let own = self.weight_vd.size().first().copied().unwrap_or(0);
        self.shard.map_or(own, |shard| shard.vocab_size as i64)
    }

    /// Row of a token in the shard; -1 if another rank has the token.
    pub(crate) fn own_target(&self, token: i64) -> i64 {
        let Some(shard) = self.shard else { return token };
        let own = token - shard.first as i64;
        let num_own = self.weight_vd.size().first().copied().unwrap_or(0);
        if (0..num_own).contains(&own) { own } else { -1 }
    }
}

/// Statistics of the logits of one position on a rank, in the order in which they are gathered.
#[derive(Clone, Copy)]
struct Statistics {
    max: f64,
    log_sum: f64,
    mean: f64,
    /// Logit of the target token; 0 on ranks that do not have the token.
    target: f64,
}

impl VocabularyShard<'_> {
    /// Replaces the statistics of a chunk, which are those of this rank's logits, by those of all ranks.
    pub(crate) fn complete(&self, chunk: &mut Chunk, temperature: f64) -> Result<(), Error> {
        let num_rows = chunk.targets.len();
        let means = chunk.log_sum.iter().zip(&chunk.entropies).map(|(log_sum, entropy)| log_sum - entropy);
        let means: Vec<f32> = means.collect();
        let targets = target_logits(chunk, temperature);
        let own = [&chunk.max, &chunk.log_sum, &means, &targets].map(Vec::as_slice).concat();
        let own = Tensor::from_slice(&own).view([4, num_rows as i64]);
        let all = Vec::<f32>::try_from((self.gather)(&own)?.to_kind(Kind::Float).view(-1));
        let all = all.map_err(|error| unreadable(&error))?;
        let of_rank = |all: &[f32], row: usize| {
            let [max, log_sum, mean, target] = [0, 1, 2, 3].map(|at| f64::from(all[at * num_rows + row]));
            Statistics { max, log_sum, mean, target }
        };
        for row in 0..num_rows {
            let ranks: Vec<Statistics> = all.chunks(4 * num_rows).map(|rank| of_rank(rank, row)).collect();
            let Joined { max, log_sum, logprob, entropy } = Joined::of(&ranks);
            (chunk.max[row], chunk.log_sum[row]) = (max as f32, log_sum as f32);
            (chunk.logprobs[row], chunk.entropies[row]) = (logprob as f32, entropy as f32);
        }
        Ok(())
    }
}

impl VocabularyShard<'_> {
    /// Replaces the statistics of this rank's `logits` by those of the full vocabulary, without copies to the
    /// host. `numbers`, f32 `[4, n]`, are log-prob, entropy, maximum and log of the sum; every rank gets the
    /// same bits. `targets`, i64 `[n]`, are columns of `logits`, out of range on ranks without the target.
    pub(crate) fn complete_on_device(
        &self,
        logits: &Tensor,
        targets: &Tensor,
        temperature: f64,
        numbers: &Tensor,
    ) -> Result<(), Error> {
        let failed = |source: tch::TchError| Error::Libtorch {
            act: "combining the statistics of vocabulary shards",
            message: source.to_string(),
        };
        let own = || {
            let (entropy, max, log_sum) = (numbers.get(1), numbers.get(2), numbers.get(3));
            let width = logits.size().last().copied().unwrap_or(0);
            let is_remote = targets.f_lt(0)?.f_logical_or(&targets.f_ge(width)?)?;
            let column = targets.f_clamp(0, (width - 1).max(0))?.f_unsqueeze(1)?;
            let logit = logits.f_gather(1, &column, false)?.f_squeeze_dim(1)?.f_to_kind(Kind::Float)?;
            let target = (logit / temperature).f_masked_fill(&is_remote, 0.0)?;
            Tensor::f_stack(&[&max, &log_sum, &(&log_sum - entropy), &target], 0)
        };
        let all = (self.gather)(&own().map_err(failed)?)?;
        let joined = || {
            // `[ranks, n]` each.
            let all = all.f_to_kind(Kind::Double)?;
            let [maxima, log_sums, means, targets] = [0, 1, 2, 3].map(|at| all.select(1, at));
            let sum = |of_ranks: &Tensor| of_ranks.f_sum_dim_intlist([0_i64].as_slice(), false, Kind::Double);
            let max = maxima.f_amax([0_i64].as_slice(), false)?;
            let lower = &maxima - &max;
            let shares = (&lower + log_sums).f_exp()?;
            let total = sum(&shares)?;
            let weighted = sum(&(&shares * (means + lower)))?;
            let log_sum = total.f_log()?;
            let logprob = sum(&targets)? - &max - &log_sum;
            let entropy = &log_sum - weighted / total;
            let joined = Tensor::f_stack(&[logprob, entropy, max, log_sum], 0)?;
            numbers.shallow_clone().f_copy_(&joined)
        };
        joined().map_err(failed)
    }
}

/// Statistics of a position over the full vocabulary.
struct Joined {
    max: f64,
    log_sum: f64,
    logprob: f64,
    entropy: f64,
}

impl Joined {
    fn of(ranks: &[Statistics]) -> Self {
        let max = ranks.iter().fold(f64::NEG_INFINITY, |max, rank| max.max(rank.max));
        let share = |rank: &Statistics| (rank.max - max + rank.log_sum).exp();
        let sum: f64 = ranks.iter().map(share).sum();
        let weighted: f64 = ranks.iter().map(|rank| share(rank) * (rank.mean + rank.max - max)).sum();
        let target: f64 = ranks.iter().map(|rank| rank.target).sum();
        let log_sum = sum.ln();
        Self { max, log_sum, logprob: target - max - log_sum, entropy: log_sum - weighted / sum }
    }
}

/// Logits of the targets divided by the temperature; 0 for targets of other ranks.
fn target_logits(chunk: &Chunk, temperature: f64) -> Vec<f32> {
    let targets = Tensor::from_slice(&chunk.targets).to_device(chunk.logits.device()).unsqueeze(1);
    let logits = chunk.logits.gather(1, &targets.clamp_min(0), false).to_kind(Kind::Float) / temperature;
    let own = logits.masked_fill(&targets.lt(0), 0.0).squeeze_dim(1);
    Vec::try_from(own).unwrap_or_default()
}

fn unreadable(error: &tch::TchError) -> Error {
    Error::Libtorch { act: "reading the statistics of a vocabulary's shards", message: error.to_string() }
}

/// Computes the sum of squared probabilities over the full vocabulary at each position, f32 `[n]`, from this
/// rank's logits divided by the temperature, f32 `[n, V]`.
///
/// # Errors
/// When a rank is lost.
pub fn sum_of_squares(logits_nv: &Tensor, gather: &GatherStatistics<'_>) -> Result<Tensor, Error> {
    let of_own = |logits_nv: &Tensor| logits_nv.logsumexp([1_i64].as_slice(), false);
    let (sums_n, squares_n) = (of_own(logits_nv), of_own(&(logits_nv * 2.0)));
    let zeros_n = sums_n.zeros_like();
    let all = gather(&Tensor::stack(&[&sums_n, &squares_n, &zeros_n, &zeros_n], 0))?;
    let of_all = |row: i64| all.select(1, row).logsumexp([0_i64].as_slice(), false);
    Ok((of_all(1) - of_all(0) * 2.0).exp())
}
