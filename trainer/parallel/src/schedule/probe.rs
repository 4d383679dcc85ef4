//! A probe of sequence parallelism before the first step: the result of a group on a few tokens must equal
//! the result of one rank on all of them. Attention over only a rank's local tokens would silently train
//! another model.

use rlt_core::packing::{PackedLayout, Segment};
use rlt_core::permutation::splitmix64;
use rlt_core::types::TokenId;
use rlt_decoder::{Adapter, PackedInput};
use rlt_layout::AxisPlace;
use tch::{Kind, Tensor};

use super::{DecoderPass, infer};
use crate::{RankError, Ranks};

/// Number of tokens per rank. It is even, and large enough that sequences cross the borders of shards.
const TOKENS_PER_RANK: usize = 6;

/// Tolerance of f32 hidden states, relative: products with fewer rows round differently. An attention that
/// misses tokens is off by a tenth or more.
const FP32_TOLERANCE: f64 = 1e-3;

/// Tolerance of bf16 hidden states, which have 8 bits of precision.
const REDUCED_TOLERANCE: f64 = 2e-2;

/// A job with sequence parallelism cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// A sequence-parallel group and a single rank compute different hidden states.
    #[error(
        "{field}: hidden states of {num_tokens} tokens differ by {difference:.1e} of their size between {sp} \
         workers that share them and one that has all, expected at most {tolerance:.0e}: the model does not see beyond a \
         worker's own tokens; set it to 1"
    )]
    Differs {
        /// The field of the sequence-parallel degree.
        field: &'static str,
        /// Number of tokens of the probe.
        num_tokens: usize,
        /// Number of ranks of a sequence-parallel group.
        sp: usize,
        /// Norm of the difference, divided by the norm of the hidden states.
        difference: f64,
        /// Largest difference that rounding explains.
        tolerance: f64,
    },
    /// A rank was lost, or ranks failed to exchange tensors.
    #[error("failed to probe sequence parallelism")]
    Ranks(#[from] RankError),
}

/// Checks that `model` gives the same result with sequence parallelism as on one rank; otherwise all ranks
/// fail together. Without sequence parallelism nothing is computed.
///
/// # Errors
/// [`ProbeError`].
pub fn check(model: DecoderPass<'_>, ranks: &Ranks, field: &'static str) -> Result<(), ProbeError> {
    if model.sp_group.is_none() {
        return Ok(());
    }
    let sample = Sample::new(ranks.sp_place().size, model.decoder.config.vocab_size);
    let own_td = sample.hidden_states(model, ranks.sp_place())?;
    let whole_td = sample.hidden_states(DecoderPass { sp_group: None, ..model }, AxisPlace::ALONE)?;
    sample.compare(&own_td, &whole_td, ranks, field)
}

/// Input of the probe: a prompt and a continuation over all shards, with padding after the last token.
#[derive(Debug)]
pub struct Sample {
    tokens: Vec<TokenId>,
    prompt_len: usize,
}

impl Sample {
    /// Creates the probe's input for `num_parts` shards, which is the same on every rank.
    pub fn new(num_parts: usize, vocab_size: usize) -> Self {
        let num_tokens = (TOKENS_PER_RANK * num_parts - 1) as u64;
        let tokens = (0..num_tokens).map(|at| (splitmix64(0, at) % vocab_size.max(1) as u64) as TokenId);
        Self { tokens: tokens.collect(), prompt_len: TOKENS_PER_RANK / 2 * num_parts }
    }

    /// The tokens of all shards, without padding.
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// Computes the hidden states of the token shard `part` after the final norm, padding included, `[t, d]`.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost or memory is short.
    pub fn hidden_states(&self, model: DecoderPass<'_>, part: AxisPlace) -> Result<Tensor, RankError> {
        let completion = Segment { len: self.tokens.len() - self.prompt_len, prefix: Some(0) };
        let layout = PackedLayout::of([Segment::alone(self.prompt_len), completion]);
        let input = PackedInput::shard_of_layout(&self.tokens, layout, part, model.decoder.device());
        let mut context = model.decoder.context(&input, Adapter::On);
        let hidden_td = infer(model, &input, &mut context)?;
        model.end_pass()?;
        Ok(hidden_td)
    }

    /// Compares this rank's shard of the hidden states, padding included, with the same tokens of the full
    /// result.
    ///
    /// # Errors
    /// [`ProbeError::Differs`], on all ranks together, or [`ProbeError::Ranks`] when a rank is lost.
    pub fn compare(
        &self,
        own_td: &Tensor,
        whole_td: &Tensor,
        ranks: &Ranks,
        field: &'static str,
    ) -> Result<(), ProbeError> {
        let own = ranks.sp_place().padded_range(self.tokens.len());
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
        let (num_tokens, sp) = (self.tokens.len(), ranks.sp_place().size);
        Err(ProbeError::Differs { field, num_tokens, sp, difference, tolerance })
    }
}
