//! A layer's products in training, from its own weights: differentiable, with unmerged adapters. Weights that
//! are packed for sampling are in the rollout engine.

use std::convert::Infallible;

use tch::Tensor;

use super::super::experts::{ExpertProducts, ExpertWeights, RoutedTokens, Router};
use super::super::layer::{DecoderLayer, LayerContext, QueriesKeysValues};
use super::super::projection::{Adapter, Dropout};
use super::latent::{self, LatentParts, LatentProducts};
use super::products::{DenseProducts, FeedForward, Projections};

/// Products of a layer from its own weights, of which a tensor-parallel rank has shards.
pub struct TrainingProducts<'a> {
    layer: &'a DecoderLayer,
    context: &'a LayerContext,
}

impl DecoderLayer {
    /// The layer's products in training.
    pub fn training_products<'a>(&'a self, context: &'a LayerContext) -> TrainingProducts<'a> {
        TrainingProducts { layer: self, context }
    }
}

impl TrainingProducts<'_> {
    /// Computes the product `product_idx` of q, k, v, o, gate, up and down, which has a projection of its
    /// own.
    fn product(&self, product_idx: usize, x: &Tensor) -> Tensor {
        self.projection(self.layer.shape.products[product_idx].projection_idx, x)
    }

    fn projection(&self, projection_idx: usize, x: &Tensor) -> Tensor {
        let LayerContext { adapter, dropout_seed, first_token, .. } = *self.context;
        let projection = &self.layer.projections[projection_idx];
        let dropout = dropout_seed.map(|seed| Dropout { seed, first_token });
        projection.forward(x, adapter, dropout)
    }

    /// Computes `N` products from `first` on, which may be fused in one projection.
    fn products<const N: usize>(&self, first: usize, x: &Tensor) -> [Tensor; N] {
        let products = &self.layer.local_products()[first..first + N];
        let shared = products[0].projection_idx;
        if products[N - 1].projection_idx != shared {
            return std::array::from_fn(|idx| self.product(first + idx, x));
        }
        let all = self.projection(shared, x);
        std::array::from_fn(|idx| {
            let rows = &products[idx].rows;
            all.narrow(-1, rows.start as i64, rows.len() as i64)
        })
    }
}

impl Projections for TrainingProducts<'_> {
    type Error = Infallible;

    fn adapter(&self) -> Adapter {
        self.context.adapter
    }

    fn qkv(&self, normed_td: &Tensor) -> (Tensor, Tensor, Tensor) {
        let [q, k, v] = self.products(0, normed_td);
        (q, k, v)
    }

    fn latent(&self) -> impl LatentProducts {
        OwnLatent(self)
    }

    fn output(&self, attended: &Tensor) -> Result<Tensor, Infallible> {
        Ok(self.product(3, attended))
    }

    fn feed_forward(
        &self,
    ) -> FeedForward<impl DenseProducts<Error = Infallible>, impl ExpertProducts<Error = Infallible>> {
        let block = OwnBlock(self);
        match &self.layer.experts {
            None => FeedForward::Dense(block),
            Some(weights) => FeedForward::Experts {
                experts: TrainingExperts { weights, projections: self },
                shared_expert: (self.layer.shape.products.len() > NUM_OF_ATTENTION).then_some(block),
            },
        }
    }
}

/// Number of attention's products: q, k, v and o.
const NUM_OF_ATTENTION: usize = 4;

/// Products of latent attention from the layer's own weights.
struct OwnLatent<'a>(&'a TrainingProducts<'a>);

impl LatentProducts for OwnLatent<'_> {
    fn compressed(&self, normed_td: &Tensor) -> (Tensor, Tensor) {
        // The first is the latent of queries, or queries themselves.
        (self.0.projection(0, normed_td), self.0.product(1, normed_td))
    }

    fn queries(&self, latent: &Tensor) -> Tensor {
        self.0.product(0, latent)
    }

    fn join(&self, parts: LatentParts) -> QueriesKeysValues {
        let expanded = self.0.product(2, &parts.latent);
        match &self.0.layer.shape.latent {
            Some(latent) => latent::expanded(latent, parts, &expanded),
            None => self.0.qkv(&expanded),
        }
    }

    fn values(&self, attended_thd: &Tensor) -> Tensor {
        let width = self.0.layer.shape.latent.as_ref().map_or(0, |latent| latent.value_dim as i64);
        attended_thd.narrow(-1, 0, width).flatten(1, 2)
    }
}

/// Products of the feed-forward block from the layer's own weights.
struct OwnBlock<'a>(&'a TrainingProducts<'a>);

impl DenseProducts for OwnBlock<'_> {
    type Error = Infallible;

    fn gate_up(&self, normed_td: &Tensor) -> (Tensor, Tensor) {
        let [gate, up] = self.0.products(NUM_OF_ATTENTION, normed_td);
        (gate, up)
    }

    fn down(&self, activated: &Tensor) -> Result<Tensor, Infallible> {
        Ok(self.0.product(6, activated))
    }
}

/// Products of the experts from the layer's own weights.
struct TrainingExperts<'a> {
    weights: &'a ExpertWeights,
    projections: &'a TrainingProducts<'a>,
}

impl ExpertProducts for TrainingExperts<'_> {
    type Error = Infallible;

    fn mixture(&self) -> Router {
        self.weights.mixture
    }

    fn scores(&self, normed_td: &Tensor) -> Tensor {
        self.weights.scores(normed_td, self.projections.context.adapter)
    }

    fn choice_bias(&self) -> Option<&Tensor> {
        self.weights.choice_bias.as_ref()
    }

    fn observe(&self, routes: &RoutedTokens) {
        let LayerContext { router, routes: watch, .. } = self.projections.context;
        router.iter().for_each(|tap| tap.observe(routes));
        let (place, num_experts) = (self.weights.place, self.weights.router.size()[0] as usize);
        watch.iter().for_each(|watch| watch.observe(place, num_experts, routes));
    }

    fn outputs(&self, normed_td: &Tensor, routes: &RoutedTokens) -> Result<Tensor, Infallible> {
        let TrainingProducts { layer, context, .. } = self.projections;
        Ok(self.weights.outputs(normed_td, routes, layer.shape.activation, context.adapter))
    }

    fn shared_gate(&self, normed_td: &Tensor) -> Option<Tensor> {
        let shared_gate_idx = self.projections.layer.shape.shared_gate_idx?;
        Some(self.projections.projection(shared_gate_idx, normed_td))
    }
}
