//! Sequence parallelism as a style (Ulysses): attention computes all tokens of some heads, and the other
//! operators all heads of some tokens. An all-to-all on either side of attention exchanges one for the other.
//!
//! ```text
//! local tokens    input -> norm, q k v, rope -> packed   |       returned -> output, feed-forward -> output
//!                                                 |                 ^
//! all-to-all                                      v                 |
//! local heads                                  gathered -> attention -> attended
//! ```
//! Legend of shapes: n ranks of the group, t tokens of one of them, padding included, s tokens of the group,
//! h query heads and k key heads of the layer, g and j those of one rank, w head width.

use rlt_torch::forget_values;
use tch::Tensor;

use super::style::{Boundary, Exchange, ParallelStyle};
use crate::{AxisGroup, RankError};

/// The sequence-parallel group of one micro-batch.
#[derive(Clone, Copy, Debug)]
pub struct Ulysses<'a> {
    /// Group whose ranks have different tokens of the micro-batch.
    pub group: &'a AxisGroup,
    /// Number of the group's tokens without padding, s.
    pub num_tokens: usize,
}

impl<'a> ParallelStyle<'a> for Ulysses<'a> {
    fn exchange(&self, at: Boundary) -> Option<Box<dyn Exchange + 'a>> {
        match at {
            Boundary::Heads => Some(Box::new(TokensToHeads { style: *self, num_heads: [0; 3] })),
            Boundary::Attended => Some(Box::new(HeadsToTokens(*self))),
            _ => None,
        }
    }
}

impl Ulysses<'_> {
    fn num_ranks(&self) -> i64 {
        self.group.place().size as i64
    }

    /// Sends blocks `[n, t, ..]` of this rank's tokens to all ranks, and returns all tokens, `[s, ..]`.
    fn gather_tokens(&self, blocks: &Tensor) -> Result<Tensor, RankError> {
        Ok(self.group.exchange_blocks(blocks)?.flatten(0, 1).narrow(0, 0, self.num_tokens as i64))
    }

    /// Sends a tensor of all tokens, `[s, ..]`, to the ranks that have them, and returns one block from each
    /// rank, `[n, t, ..]`. The last block is padded with zeros.
    fn scatter_tokens(&self, all: &Tensor) -> Result<Tensor, RankError> {
        let padding = (-all.size()[0]).rem_euclid(self.num_ranks());
        let padded = all.detach().constant_pad_nd([0, 0, 0, 0, 0, padding]);
        self.group.exchange_blocks(&padded.unflatten(0, [self.num_ranks(), -1]))
    }
}

/// The exchange before attention: of heads of local tokens for all tokens of local heads.
#[derive(Debug)]
struct TokensToHeads<'a> {
    style: Ulysses<'a>,
    /// Numbers of heads of a rank: g, j and j.
    num_heads: [i64; 3],
}

impl Exchange for TokensToHeads<'_> {
    /// Packs queries, keys and values by receiving rank, `[n, t, g + 2 j, w]`.
    fn pack(&mut self, tensors: Vec<Tensor>) -> Vec<Tensor> {
        let (packed, num_heads) = split_heads(&tensors, self.style.num_ranks());
        self.num_heads = num_heads;
        vec![packed]
    }

    /// Returns this rank's heads of all tokens, `[s, g + 2 j, w]`.
    fn forward(&self, end: &Tensor) -> Result<Tensor, RankError> {
        let gathered = self.style.gather_tokens(end)?;
        forget_values(end)?;
        Ok(gathered)
    }

    fn unpack(&self, leaves: &[Tensor]) -> Result<Vec<Tensor>, RankError> {
        Ok(leaves[0].split_with_sizes(self.num_heads, 1))
    }

    fn backward(&self, grad: &Tensor) -> Result<Tensor, RankError> {
        self.style.scatter_tokens(grad)
    }
}

/// The exchange after attention: of all tokens of local heads for all heads of local tokens.
#[derive(Debug)]
struct HeadsToTokens<'a>(Ulysses<'a>);

impl Exchange for HeadsToTokens<'_> {
    /// Returns attention's output for local tokens, `[t, h, w]`, from that of this rank's heads, `[s, g, w]`.
    fn forward(&self, end: &Tensor) -> Result<Tensor, RankError> {
        // Blocks [n, t, g, w] of every rank's heads.
        Ok(self.0.scatter_tokens(end)?.transpose(0, 1).contiguous().flatten(1, 2))
    }

    fn backward(&self, grad: &Tensor) -> Result<Tensor, RankError> {
        self.0.gather_tokens(&grad.unflatten(1, [self.0.num_ranks(), -1]).transpose(0, 1))
    }
}

/// Splits queries `[t, h, w]`, keys and values `[t, k, w]` of local tokens into one block for each of
/// `num_ranks`, `[n, t, g + 2 j, w]`. The second result is the numbers of heads in a block: g, j and j. A
/// block has a rank's share of the query heads, and the key heads that they attend to. If there are fewer key
/// heads than ranks, several ranks get the same one.
fn split_heads(queries_keys_values: &[Tensor], num_ranks: i64) -> (Tensor, [i64; 3]) {
    let [q_thw, k_tkw, v_tkw] = [0, 1, 2].map(|idx: usize| &queries_keys_values[idx]);
    let shared = |heads: &Tensor| {
        let copies = (num_ranks / heads.size()[1]).max(1);
        heads.unsqueeze(2).expand([-1, -1, copies, -1], false).flatten(1, 2)
    };
    let blocks = [q_thw.shallow_clone(), shared(k_tkw), shared(v_tkw)];
    let blocks = blocks.map(|heads| heads.unflatten(1, [num_ranks, -1]));
    let num_heads = [0, 1, 2].map(|block: usize| blocks[block].size()[2]);
    (Tensor::cat(&blocks, 2).transpose(0, 1).contiguous(), num_heads)
}
