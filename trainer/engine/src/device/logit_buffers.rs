//! Logits of every token of the vocabulary: from one product, or gathered from the shards of several ranks.

use tch::{Kind, Tensor};

use super::CudaError;
use super::layers::{Model, copy_into};
use super::stream_tensor_parallel::StreamTensorParallel;

/// Buffers of logits for a number of rows.
pub(super) struct LogitBuffers {
    /// Logits, `[rows, vocabulary]`.
    pub(super) of_all_tokens: Tensor,
    shards: Option<TpScores>,
}

/// Buffers of tensor-parallel logits. All shards are as long as the longest.
struct TpScores {
    /// Logits of this rank's shard, `[rows, longest]`.
    own: Tensor,
    /// Logits of all ranks, concatenated, `[num * rows * longest]`.
    of_all_ranks: Tensor,
    num: usize,
    longest: usize,
}

impl Model<'_> {
    /// Allocates buffers for the logits of at most `max_rows` rows.
    pub(super) fn scores(&self, max_rows: usize, kind: Kind) -> LogitBuffers {
        let empty = |size: &[i64]| Tensor::empty(size, (kind, self.device()));
        let (rows, vocab_size) = (max_rows as i64, self.vocab_size());
        let shards = self.peers.as_ref().map(|peers| {
            let (num, longest) = (peers.num(), peers.longest(vocab_size));
            let own = empty(&[rows, longest as i64]);
            TpScores { own, of_all_ranks: empty(&[(num * max_rows * longest) as i64]), num, longest }
        });
        LogitBuffers { of_all_tokens: empty(&[rows, vocab_size as i64]), shards }
    }

    /// Computes the logits of hidden states after the final norm.
    pub(super) fn score(&self, normed: &Tensor, scores: &LogitBuffers) -> Result<(), CudaError> {
        match (&scores.shards, &self.peers) {
            (Some(shards), Some(peers)) => {
                self.head().forward_into(normed, &shards.own)?;
                shards.all_gather_columns(peers, &scores.of_all_tokens)
            }
            _ => Ok(self.head().forward_into(normed, &scores.of_all_tokens)?),
        }
    }
}

impl LogitBuffers {
    /// Views of the buffers for fewer rows.
    pub(super) fn of_rows(&self, rows: usize) -> Self {
        let first = |tensor: &Tensor| tensor.narrow(0, 0, rows as i64);
        let shards = self.shards.as_ref().map(|shards| TpScores {
            own: first(&shards.own),
            of_all_ranks: shards.of_all_ranks.narrow(0, 0, (shards.num * rows * shards.longest) as i64),
            ..*shards
        });
        Self { of_all_tokens: first(&self.of_all_tokens), shards }
    }
}

impl TpScores {
    /// Joins the logits of all ranks side by side, without the padding of the last shards.
    fn all_gather_columns(
        &self,
        peers: &StreamTensorParallel,
        of_all_tokens: &Tensor,
    ) -> Result<(), CudaError> {
        peers.all_gather(&self.of_all_ranks, &self.own)?;
        let (rows, vocab_size) = (of_all_tokens.size()[0], of_all_tokens.size()[1]);
        let longest = self.longest as i64;
        let by_rank = self.of_all_ranks.view([self.num as i64, rows, longest]);
        let num_whole = vocab_size / longest;
        let begun = num_whole * longest;
        let whole = of_all_tokens.narrow(1, 0, begun).unflatten(1, [num_whole, longest]);
        copy_into(&whole, &by_rank.narrow(0, 0, num_whole).transpose(0, 1))?;
        if begun < vocab_size {
            let rest = of_all_tokens.narrow(1, begun, vocab_size - begun);
            copy_into(&rest, &by_rank.select(0, num_whole).narrow(1, 0, vocab_size - begun))?;
        }
        Ok(())
    }
}
