//! A decoder that is read one FSDP unit at a time: weight sync and export never need the whole model in
//! memory.

use tch::Kind;

use super::{FsdpUnit, RankError, ShardedParameters, WeightDtype};
use crate::model::Decoder;

/// A decoder to be read unit by unit: it is whole, or its units are unsharded one at a time.
#[derive(Clone, Copy, Debug)]
pub struct DecoderUnits<'a> {
    decoder: &'a Decoder,
    shards: Option<&'a ShardedParameters>,
}

impl<'a> From<&'a Decoder> for DecoderUnits<'a> {
    /// One that is all here.
    fn from(decoder: &'a Decoder) -> Self {
        Self { decoder, shards: None }
    }
}

impl<'a> DecoderUnits<'a> {
    /// A decoder whose ranks share it as `shards`; without them it is all here.
    pub fn new(decoder: &'a Decoder, shards: Option<&'a ShardedParameters>) -> Self {
        Self { decoder, shards }
    }

    /// The decoder; its parameters can be read while [`Self::visit`] is at their unit.
    pub fn decoder(&self) -> &'a Decoder {
        self.decoder
    }

    /// This rank's shards; `None` where all of the decoder is here.
    pub fn shards(&self) -> Option<&'a ShardedParameters> {
        self.shards
    }

    /// The numbers that a copy to sample with in `kind` is made of: those that layers compute with, unless an
    /// adapter is to be folded in, or `kind` is another one: no number is rounded twice.
    pub fn dtype_to_sample(&self, kind: Kind) -> WeightDtype {
        let is_other = self.decoder.lora().is_some() || kind != self.decoder.compute_kind();
        if is_other { WeightDtype::Master } else { WeightDtype::Compute }
    }

    /// Calls `read` for every unit while it is whole, in `dtype` if it is sharded: first the outer unit, then
    /// the layers. With FSDP this is collective.
    ///
    /// # Errors
    /// The error of `read`, or [`RankError`] when a rank is lost or memory is short.
    pub fn visit<E: From<RankError>>(
        &self,
        dtype: WeightDtype,
        mut read: impl FnMut(FsdpUnit) -> Result<(), E>,
    ) -> Result<(), E> {
        match self.shards {
            Some(shards) => shards.visit(dtype, read),
            None => {
                let layers = (0..self.decoder.layers().len()).map(FsdpUnit::Layer);
                std::iter::once(FsdpUnit::Outer).chain(layers).try_for_each(&mut read)
            }
        }
    }
}
