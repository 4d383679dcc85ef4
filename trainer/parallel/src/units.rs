//! Access to a decoder one FSDP unit at a time, so that weight sync and export never need the full model in
//! memory.

use rlt_decoder::Decoder;
use tch::Kind;

use super::{FsdpUnit, RankError, ShardedParameters, WeightDtype};

/// Read access to a decoder, one FSDP unit at a time. The units of a sharded decoder are unsharded one after
/// the other.
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
    /// Creates access to a decoder with the shards `shards`; `None` if it is not sharded.
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

    /// Returns the weight dtype from which a rollout copy in `kind` is made: the compute dtype, or the master
    /// dtype if an adapter must be merged or `kind` is not the compute dtype. So no value is rounded twice.
    pub fn dtype_to_sample(&self, kind: Kind) -> WeightDtype {
        let is_other = self.decoder.lora().is_some() || kind != self.decoder.compute_kind();
        if is_other { WeightDtype::Master } else { WeightDtype::Compute }
    }

    /// Calls `read` for every unit while it is unsharded, in `dtype` if the decoder is sharded: first the
    /// root unit, then the layers. Collective with FSDP.
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
