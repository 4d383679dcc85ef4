//! Products of a layer from its packed weights, or from this rank's tensor-parallel shard of them, whose
//! outputs are all-reduced.

use rlt_decoder::{
    DenseProducts, ExpertProducts, FeedForward, LatentProducts, Projections, RouteLog, RoutedTokens, Router,
};
use rlt_parallel::{AxisGroup, RankError};
use tch::Tensor;

use super::experts::PackedExperts;
use super::latent::RolloutLatent;
use super::weights::{PackedBlock, PackedLayer};

/// Products of a layer from packed weights. With `ranks` these are shards, and outputs are all-reduced.
pub(super) struct TpProjections<'a> {
    pub(super) layer: &'a PackedLayer,
    pub(super) ranks: Option<&'a AxisGroup>,
    pub(super) routes: Option<&'a RouteLog>,
}

impl TpProjections<'_> {
    fn summed(&self, own: Tensor) -> Result<Tensor, RankError> {
        self.ranks.map_or(Ok(()), |ranks| ranks.all_reduce(&own))?;
        Ok(own)
    }
}

impl Projections for TpProjections<'_> {
    type Error = RankError;

    fn qkv(&self, normed_td: &Tensor) -> (Tensor, Tensor, Tensor) {
        let qkv = self.layer.qkv.forward(normed_td);
        let [q, k, v] = self.layer.qkv_widths;
        (qkv.narrow(1, 0, q), qkv.narrow(1, q, k), qkv.narrow(1, q + k, v))
    }

    fn latent(&self) -> impl LatentProducts {
        let [queries, keys, _] = self.layer.qkv_widths;
        RolloutLatent {
            packed: self.layer.latent.as_ref(),
            product: &self.layer.qkv,
            widths: [queries, keys],
        }
    }

    fn output(&self, attended: &Tensor) -> Result<Tensor, RankError> {
        self.summed(self.layer.output.forward(attended))
    }

    fn feed_forward(
        &self,
    ) -> FeedForward<impl DenseProducts<Error = RankError>, impl ExpertProducts<Error = RankError>> {
        match &self.layer.feed_forward {
            FeedForward::Dense(packed) => FeedForward::Dense(TpBlock { packed, products: self }),
            FeedForward::Experts { experts, shared_expert } => FeedForward::Experts {
                experts: TpExperts { packed: experts, products: self },
                shared_expert: shared_expert.as_ref().map(|packed| TpBlock { packed, products: self }),
            },
        }
    }
}

/// Products of a feed-forward block from packed weights, or from this rank's shard of them.
struct TpBlock<'a> {
    packed: &'a PackedBlock,
    products: &'a TpProjections<'a>,
}

impl DenseProducts for TpBlock<'_> {
    type Error = RankError;

    fn gate_up(&self, normed_td: &Tensor) -> (Tensor, Tensor) {
        let gate_up = self.packed.gate_up.forward(normed_td);
        let width = self.packed.intermediate;
        (gate_up.narrow(1, 0, width), gate_up.narrow(1, width, width))
    }

    fn down(&self, activated: &Tensor) -> Result<Tensor, RankError> {
        self.products.summed(self.packed.down.forward(activated))
    }
}

/// Products of the experts from packed weights, or from this rank's shard of each.
struct TpExperts<'a> {
    packed: &'a PackedExperts,
    products: &'a TpProjections<'a>,
}

impl ExpertProducts for TpExperts<'_> {
    type Error = RankError;

    fn mixture(&self) -> Router {
        self.packed.mixture()
    }

    fn scores(&self, normed_td: &Tensor) -> Tensor {
        self.packed.scores(normed_td)
    }

    fn choice_bias(&self) -> Option<&Tensor> {
        self.packed.choice_bias()
    }

    fn observe(&self, routes: &RoutedTokens) {
        self.products.routes.iter().for_each(|log| log.push(routes));
    }

    fn outputs(&self, normed_td: &Tensor, routes: &RoutedTokens) -> Result<Tensor, RankError> {
        self.products.summed(self.packed.outputs(normed_td, routes))
    }

    fn shared_gate(&self, normed_td: &Tensor) -> Option<Tensor> {
        self.packed.shared_gate(normed_td)
    }
}
