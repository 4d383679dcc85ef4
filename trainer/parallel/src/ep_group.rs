//! Exchanges of expert-parallel groups, whose ranks each hold some of every layer's experts. The exchange of
//! a layer is in `layer`, the layout of ranks in `rlt_layout`, the arithmetic of rows in
//! `rlt_core::expert_rows`.

use tch::Tensor;

use super::{AxisGroup, RankError, Ranks};

impl AxisGroup {
    /// Exchanges `counts`, one per expert of the model in order: each rank gets the counts of its experts
    /// from every rank, rank-major. The result is on the host, which needs it for the sizes of the next
    /// all-to-all.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub(crate) fn exchange_counts(&self, counts: &[i64]) -> Result<Vec<i64>, RankError> {
        let num_ranks = self.place().size;
        let splits = vec![(counts.len() / num_ranks) as i64; num_ranks];
        let received = self.all_to_all(&Tensor::from_slice(counts), &splits, &splits)?;
        Ok(rlt_torch::to_vec(&received))
    }
}

impl Ranks {
    /// Sets the expert-parallel degree: `ep` adjacent ranks distribute the experts of every model that they
    /// shard ([`Ranks::on_mesh`]). All ranks must give the same degree.
    #[must_use]
    pub fn with_expert_parallel(self, ep: usize) -> Self {
        Self { ep, ..self }
    }
}
