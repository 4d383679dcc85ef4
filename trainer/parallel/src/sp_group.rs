//! Exchange of sequence-parallel groups (Ulysses), whose ranks each compute a shard of the same packed
//! tokens. `layer` uses it around attention; the layout of ranks is in `rlt_layout`.

use tch::Tensor;

use super::{AxisGroup, RankError};

impl AxisGroup {
    /// All-to-all of equal blocks: sends block `r` of `blocks`, `[size, ..]`, to rank `r` of the group, and
    /// returns the blocks received from all ranks, in their order.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub(crate) fn exchange_blocks(&self, blocks: &Tensor) -> Result<Tensor, RankError> {
        let splits = vec![1; self.place().size];
        self.all_to_all(blocks, &splits, &splits)
    }
}
