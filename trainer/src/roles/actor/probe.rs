//! A probe of sequence parallelism before the first step: a group's result on a few tokens must equal the
//! result of one rank on all of them. Attention over only the own rank's tokens would train silently, as
//! another model.

use rlt_core::mesh::SpShard;
use rlt_core::packing::{PackedLayout, Segment};
use rlt_core::permutation::splitmix64;
use rlt_core::types::TokenId;
use tch::{Kind, Tensor};

use super::layer_schedule::{self, Model};
use crate::model::{Adapter, PackedInput};
use crate::parallel::{RankError, Ranks};

/// Tokens of each rank, even: enough that sequences cross the borders of shards.
const TOKENS_PER_RANK: usize = 6;

/// The rounding difference of a matrix product with fewer rows, relative to hidden states in fp32. An
/// attention that misses tokens is off by a tenth and more.
const FP32_TOLERANCE: f64 = 1e-3;

/// The same for hidden states in bf16, which has 8 bits.
const REDUCED_TOLERANCE: f64 = 2e-2;

/// Why a job with sequence parallelism does not start.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The ranks together compute something else than one of them.
    #[error(
        "{field}: hidden states of {num_tokens} tokens differ by {difference:.1e} of their size between {sp} \
         workers that share them and one that has all, expected at most {tolerance:.0e}: the model does not see beyond a \
         worker's own tokens; set it to 1"
    )]
    Differs {
        /// The field of the sequence-parallel degree.
        field: &'static str,
        /// Tokens that were tried.
        num_tokens: usize,
        /// Ranks of a stream.
        sp: usize,
        /// Norm of the difference by the norm of the hidden states.
        difference: f64,
        /// The largest difference that rounding explains.
        tolerance: f64,
    },
    /// The ranks could not work together.
    #[error("failed to probe sequence parallelism")]
    Ranks(#[from] RankError),
}

/// Fails on all ranks together unless `model` gives the same result with sequence parallelism as on one rank.
/// Without sequence parallelism nothing is computed.
///
/// # Errors
/// [`ProbeError`].
pub(crate) fn check(model: Model<'_>, ranks: &Ranks, field: &'static str) -> Result<(), ProbeError> {
    if model.sp_group.is_none() {
        return Ok(());
    }
    let sample = Sample::new(ranks.sp_shard().num_shards, model.decoder.config.vocab_size);
    let own_td = sample.hidden_states(model, ranks.sp_shard())?;
    let whole_td = sample.hidden_states(Model { sp_group: None, ..model }, SpShard::WHOLE)?;
    sample.compare(&own_td, &whole_td, (ranks, field))
}

/// The probe's input: a prompt and its continuations, over all shards, with padding after the last token.
pub(crate) struct Sample {
    tokens: Vec<TokenId>,
    prompt_len: usize,
}

impl Sample {
    /// The same tokens on every rank.
    pub(crate) fn new(num_parts: usize, vocab_size: usize) -> Self {
        let num_tokens = (TOKENS_PER_RANK * num_parts - 1) as u64;
        let tokens = (0..num_tokens).map(|at| (splitmix64(0, at) % vocab_size.max(1) as u64) as TokenId);
        Self { tokens: tokens.collect(), prompt_len: TOKENS_PER_RANK / 2 * num_parts }
    }

    /// The tokens of all shards, without padding.
    #[cfg(test)]
    pub(crate) fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// Hidden states after the final norm of a shard of the tokens, padding included, `[t, d]`.
    pub(crate) fn hidden_states(&self, model: Model<'_>, part: SpShard) -> Result<Tensor, RankError> {
        let completion = Segment { len: self.tokens.len() - self.prompt_len, prefix: Some(0) };
        let layout = PackedLayout::of([Segment::alone(self.prompt_len), completion]);
        let input = PackedInput::shard_of_layout(&self.tokens, layout, part, model.decoder.device());
        let mut context = model.decoder.context(&input, Adapter::On);
        let hidden_td = layer_schedule::infer(model, &input, &mut context)?;
        model.leave()?;
        Ok(hidden_td)
    }

    /// Compares this rank's shard of the hidden states, padding included, with the same tokens of the whole.
    pub(crate) fn compare(
        &self,
        own_td: &Tensor,
        whole_td: &Tensor,
        (ranks, field): (&Ranks, &'static str),
    ) -> Result<(), ProbeError> {
        let own = ranks.sp_shard().range(self.tokens.len());
        let num_real = own.end.min(self.tokens.len()).saturating_sub(own.start) as i64;
        let expected_td = whole_td.narrow(0, own.start as i64, num_real);
        let square =
            |tensor: &Tensor| tensor.to_kind(Kind::Double).square().sum(Kind::Double).double_value(&[]);
        let got_td = own_td.narrow(0, 0, num_real).to_kind(Kind::Double);
        let mut squares = vec![square(&(got_td - &expected_td)), square(&expected_td)];
        ranks.all_reduce(&mut [&mut squares])?;
        let difference = (squares[0] / squares[1]).sqrt();
        let tolerance = if whole_td.kind() == Kind::Float { FP32_TOLERANCE } else { REDUCED_TOLERANCE };
        if difference <= tolerance {
            return Ok(());
        }
        let (num_tokens, sp) = (self.tokens.len(), ranks.sp_shard().num_shards);
        Err(ProbeError::Differs { field, num_tokens, sp, difference, tolerance })
    }
}
