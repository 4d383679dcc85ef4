//! Access to a decoder one FSDP unit at a time, so that weight sync and export never need the full model in
//! memory.

use rlt_decoder::Decoder;
use tch::Kind;

use super::{FsdpUnit, RankError, ShardedParameters, WeightDtype};

/// A decoder to be read unit by unit: it is unsharded anyway, or its units are unsharded one at a time.
#[derive(Clone, Copy, Debug)]
pub struct DecoderUnits<'a> {
    decoder: &'a Decoder,
    shards: Option<&'a ShardedParameters>,
}

impl<'a> From<&'a Decoder> for DecoderUnits<'a> {
    /// A decoder that is not sharded.
    fn from(decoder: &'a Decoder) -> Self {
        Self { decoder, shards: None }
    }
}

impl<'a> DecoderUnits<'a> {
    /// A decoder that is sharded as `shards`; without them it is not sharded.
    pub fn new(decoder: &'a Decoder, shards: Option<&'a ShardedParameters>) -> Self {
        Self { decoder, shards }
    }

    /// The decoder; parameters of a unit can be read while [`Self::visit`] is at that unit.
    pub fn decoder(&self) -> &'a Decoder {
        self.decoder
    }

    /// This rank's shards; `None` if the decoder is not sharded.
    pub fn shards(&self) -> Option<&'a ShardedParameters> {
        self.shards
    }

    /// The weight dtype from which a sampling copy in `kind` is made: that of the layers' compute, unless an
    /// adapter must be folded in or `kind` differs. So no value is rounded twice.
    pub fn dtype_to_sample(&self, kind: Kind) -> WeightDtype {
        let is_other = self.decoder.lora().is_some() || kind != self.decoder.compute_kind();
        if is_other { WeightDtype::Master } else { WeightDtype::Compute }
    }

    /// Calls `read` for every unit while it is unsharded, in `dtype` if the decoder is sharded: first the
    /// outer unit, then the layers. Collective with FSDP.
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
                std::iter::once(FsdpUnit::Root).chain(layers).try_for_each(&mut read)
            }
        }
    }
}
