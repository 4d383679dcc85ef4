//! A decoder that is read part by part, wherever its parts are: whoever takes all of a model over never needs
//! it whole. What is made of a part is the reader's.

use tch::Kind;

use super::{Numbers, Part, RankError, ShardedParameters};
use crate::model::Decoder;

/// A decoder to be read one part after the other: all of it is here, or its parts come and go.
#[derive(Clone, Copy, Debug)]
pub struct DecoderParts<'a> {
    decoder: &'a Decoder,
    shards: Option<&'a ShardedParameters>,
}

impl<'a> From<&'a Decoder> for DecoderParts<'a> {
    /// One that is all here.
    fn from(decoder: &'a Decoder) -> Self {
        Self { decoder, shards: None }
    }
}

impl<'a> DecoderParts<'a> {
    /// A decoder whose ranks share it as `shards`; without them it is all here.
    pub fn new(decoder: &'a Decoder, shards: Option<&'a ShardedParameters>) -> Self {
        Self { decoder, shards }
    }

    /// The decoder; its parameters can be read while [`Self::visit`] is at their part.
    pub fn decoder(&self) -> &'a Decoder {
        self.decoder
    }

    /// This rank's shards; `None` where all of the decoder is here.
    pub fn shards(&self) -> Option<&'a ShardedParameters> {
        self.shards
    }

    /// The numbers that a copy to sample with in `kind` is made of: those that layers compute with, unless an
    /// adapter is to be folded in, or `kind` is another one: no number is rounded twice.
    pub fn numbers_to_sample(&self, kind: Kind) -> Numbers {
        let is_other = self.decoder.lora().is_some() || kind != self.decoder.compute_kind();
        if is_other { Numbers::Exact } else { Numbers::Computed }
    }

    /// Lets `read` see every part while it is whole, in `numbers` where it comes and goes: first what is
    /// outside of the layers, then these, first to last. Where ranks share the decoder all of them do so
    /// together.
    ///
    /// # Errors
    /// What `read` fails with, or [`RankError`] when a rank is lost or memory is short.
    pub fn visit<E: From<RankError>>(
        &self,
        numbers: Numbers,
        mut read: impl FnMut(Part) -> Result<(), E>,
    ) -> Result<(), E> {
        match self.shards {
            Some(shards) => shards.visit(numbers, read),
            None => {
                let layers = (0..self.decoder.layers().len()).map(Part::Layer);
                std::iter::once(Part::Outer).chain(layers).try_for_each(&mut read)
            }
        }
    }
}
