//! The language-model head with tensor parallelism, whose ranks hold different rows of the head's weight.
//! Every rank gets log-probs and entropies over the full vocabulary, and gradients of hidden states are
//! summed over the ranks.

use rlt_torch::collectives::CollectiveError;
use rlt_torch::{HeadWeight, VocabularyShard};
use tch::Tensor;

use super::DecoderPass;
use crate::{Boundary, RankError, TensorParallel};

impl DecoderPass<'_> {
    /// Calls `head` with the head's weight `weight_vd`, which is full or this rank's shard.
    pub fn with_head<T>(&self, weight_vd: &Tensor, head: impl FnOnce(HeadWeight<'_>) -> T) -> T {
        let Some(TensorParallel { group }) = self.tensor_parallel() else {
            return head(HeadWeight::from(weight_vd));
        };
        let gather = |own: &Tensor| -> Result<Tensor, CollectiveError> { group.gather_statistics(own) };
        let vocab_size = self.decoder.config.vocab_size;
        let shard = VocabularyShard { first: self.decoder.tokens().start, vocab_size, gather: &gather };
        head(HeadWeight { weight_vd, shard: Some(shard) })
    }

    /// Sums the ranks' gradients of hidden states, `[c, d]`. Collective.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn sum_of_head(&self, grad_cd: Tensor) -> Result<Tensor, RankError> {
        self.styles(0).backward_at(Boundary::HeadInput, grad_cd)
    }
}
