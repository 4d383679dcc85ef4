//! Sequences of different lengths as one stream of tokens, without padding.

use rlt_core::packing::{PackedLayout, Segment};
use rlt_core::types::TokenId;
use tch::{Device, Tensor};

/// A micro-batch: all tokens one after the other, and where each segment ends.
#[derive(Debug)]
pub struct PackedInput {
    /// Token ids, i64 [tokens].
    pub tokens: Tensor,
    /// Position of each token in its own sequence, from 0, i64 [tokens].
    pub position_ids: Tensor,
    /// Start of each segment in the stream, and the stream's length at the end: segments + 1 entries from 0.
    pub cu_seqlens: Vec<i32>,
    /// The earlier segment that each segment continues: the prompt of a completion, computed once for all of them.
    pub prefixes: Vec<Option<usize>>,
}

impl PackedInput {
    /// Packs `sequences` in the given order; empty ones take no place in the stream but keep their entry in
    /// `cu_seqlens`. Token ids must be below the model's `vocab_size`.
    pub fn new(sequences: &[&[TokenId]], device: Device) -> Self {
        let layout = PackedLayout::of(sequences.iter().map(|sequence| Segment::alone(sequence.len())));
        Self::from_layout(&sequences.concat(), layout, device)
    }

    /// A stream of `tokens` that `layout` divides.
    pub fn from_layout(tokens: &[TokenId], layout: PackedLayout, device: Device) -> Self {
        let tokens: Vec<i64> = tokens.iter().map(|token| i64::from(*token)).collect();
        Self {
            tokens: Tensor::from_slice(&tokens).to_device(device),
            position_ids: Tensor::from_slice(&layout.position_ids).to_device(device),
            cu_seqlens: layout.cu_seqlens,
            prefixes: layout.prefixes,
        }
    }

    /// Tokens in the stream.
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
}
