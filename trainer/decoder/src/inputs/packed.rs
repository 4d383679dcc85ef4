//! Sequences of different lengths packed into one row of tokens, without padding.

use std::rc::Rc;
use std::sync::Arc;

use rlt_core::images::PromptImage;
use rlt_core::packing::{PackedLayout, Segment};
use rlt_core::types::TokenId;
use rlt_layout::AxisPlace;
use rlt_torch::{DeviceSegments, Segments};
use tch::{Device, Kind, Tensor};

/// A micro-batch of packed tokens, or a sequence-parallel rank's shard of one, with its segments.
#[derive(Debug)]
pub struct PackedInput {
    /// Token ids, `i64 [tokens]`; with sequence parallelism those of this rank's shard, with padding at the
    /// end.
    pub tokens: Tensor,
    /// Position of each token of `tokens` in its own sequence, from 0, `i64 [tokens]`. With images one row
    /// each for time, height and width, `i64 [3, tokens]`.
    pub position_ids: Tensor,
    /// Index in the packed row of the first token of `tokens`.
    pub first_token: usize,
    /// Start of each segment in the packed row, and the row's length at the end: segments + 1 entries from 0.
    pub cu_seqlens: Vec<i32>,
    /// Index of the earlier segment that each segment continues: the prompt of a completion, computed once
    /// for all of its completions.
    pub prefixes: Vec<Option<usize>>,
    /// `cu_seqlens` and `prefixes` as a GPU's attention reads them; `None` on the CPU.
    pub segments: Option<Rc<DeviceSegments>>,
    /// Images among the tokens; `None` if there are none.
    pub images: Option<PackedImages>,
}

/// Images of a micro-batch, whose features replace the embeddings of their placeholder tokens.
#[derive(Debug)]
pub struct PackedImages {
    /// The images, in the order of their tokens.
    pub images: Vec<Arc<PromptImage>>,
    /// Index of each placeholder token in [`PackedInput::tokens`], `i64 [tokens of images]`.
    pub places: Tensor,
}

impl PackedInput {
    /// Packs `sequences` in the given order. Empty ones have no tokens but keep their entry in `cu_seqlens`.
    /// Token ids must be below the model's `vocab_size`.
    pub fn new(sequences: &[&[TokenId]], device: Device) -> Self {
        let layout = PackedLayout::of(sequences.iter().map(|sequence| Segment::alone(sequence.len())));
        Self::from_layout(&sequences.concat(), layout, device)
    }

    /// Packs `tokens`, which are concatenated already, with the segments of `layout`.
    pub(crate) fn from_layout(tokens: &[TokenId], layout: PackedLayout, device: Device) -> Self {
        Self::shard_of_layout(tokens, layout, AxisPlace::ALONE, device)
    }

    /// Packs a sequence-parallel rank's shard of `tokens` with the segments of `layout`. Shards are padded to
    /// equal length with token 0 at position 0; padding belongs to no segment, so no token attends to it.
    pub fn shard_of_layout(
        tokens: &[TokenId],
        layout: PackedLayout,
        part: AxisPlace,
        device: Device,
    ) -> Self {
        Self::shard_with_arrays([], tokens, layout, part, device).0
    }

    /// [`Self::shard_of_layout`] that also uploads integer `arrays`, so that a GPU gets all of it by one
    /// copy.
    pub fn shard_with_arrays<const N: usize>(
        arrays: [&[i64]; N],
        tokens: &[TokenId],
        layout: PackedLayout,
        part: AxisPlace,
        device: Device,
    ) -> (Self, [Tensor; N]) {
        let own = part.padded_range(tokens.len());
        let or_padding = |ids: &mut dyn Iterator<Item = i64>| -> Vec<i64> {
            ids.chain(std::iter::repeat(0)).take(own.len()).collect()
        };
        let ids = or_padding(&mut tokens.iter().skip(own.start).map(|token| i64::from(*token)));
        let position_ids = or_padding(&mut layout.position_ids.iter().skip(own.start).copied());
        let all = [[ids.as_slice(), &position_ids].as_slice(), &arrays].concat();
        let (segments, uploaded) = match device {
            Device::Cpu => (None, rlt_torch::upload(&all, device)),
            _ => {
                let segments = Segments { cu_seqlens: &layout.cu_seqlens, prefixes: &layout.prefixes };
                let (segments, uploaded) = DeviceSegments::with_arrays(segments, &all, device);
                (Some(Rc::new(segments)), uploaded)
            }
        };
        let mut uploaded = uploaded.into_iter();
        let mut next = || uploaded.next().unwrap_or_else(|| Tensor::empty([0], (Kind::Int64, device)));
        let input = Self {
            tokens: next(),
            position_ids: next(),
            first_token: own.start,
            cu_seqlens: layout.cu_seqlens,
            prefixes: layout.prefixes,
            segments,
            images: None,
        };
        (input, std::array::from_fn(|_| next()))
    }

    /// Adds images, whose placeholder tokens are at `places`, and positions in three axes: time, height and
    /// width.
    #[must_use]
    pub fn with_images(
        self,
        images: Vec<Arc<PromptImage>>,
        places: &[i64],
        positions: &[Vec<i64>; 3],
    ) -> Self {
        let device = self.tokens.device();
        let mut uploaded = rlt_torch::upload(&[&positions.concat(), places], device).into_iter();
        let (Some(position_ids), Some(places)) = (uploaded.next(), uploaded.next()) else { return self };
        let position_ids = position_ids.view([3, -1]);
        Self { position_ids, images: Some(PackedImages { images, places }), ..self }
    }

    /// Zeroes the rows of images in a gradient of embedded tokens `[t, d]`: no embedding was looked up for
    /// them.
    pub fn without_images(&self, grad_td: Tensor) -> Tensor {
        match &self.images {
            Some(PackedImages { places, .. }) => grad_td.index_fill(0, places, 0.0),
            None => grad_td,
        }
    }

    /// Number of packed tokens of the whole sequence-parallel group, without padding.
    pub fn num_tokens(&self) -> usize {
        self.cu_seqlens.last().map_or(0, |end| *end as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_restart_with_every_sequence() {
        let input = PackedInput::new(&[&[5, 6, 7], &[8], &[9, 10]], Device::Cpu);
        assert_eq!(Vec::<i64>::try_from(&input.tokens).unwrap(), [5, 6, 7, 8, 9, 10]);
        assert_eq!(Vec::<i64>::try_from(&input.position_ids).unwrap(), [0, 1, 2, 0, 0, 1]);
        assert_eq!(input.cu_seqlens, [0, 3, 4, 6]);
        assert_eq!(input.num_tokens(), 6);
    }
    #[test]
    fn shards_are_the_packed_tokens_and_padding_behind_them() {
        let tokens = [5, 6, 7, 8, 9, 10, 11];
        let layout = || PackedLayout::of([Segment::alone(3), Segment::alone(4)]);
        let part = |index| {
            let part = AxisPlace { index, size: 3 };
            let input = PackedInput::shard_of_layout(&tokens, layout(), part, Device::Cpu);
            assert_eq!((&input.cu_seqlens[..], input.num_tokens()), (&[0, 3, 7][..], 7));
            let numbers = |tensor: &Tensor| Vec::<i64>::try_from(tensor).unwrap();
            (input.first_token, numbers(&input.tokens), numbers(&input.position_ids))
        };
        assert_eq!(part(0), (0, vec![5, 6, 7], vec![0, 1, 2]));
        assert_eq!(part(1), (3, vec![8, 9, 10], vec![0, 1, 2]));
        assert_eq!(part(2), (6, vec![11, 0, 0], vec![3, 0, 0]));
    }
}
