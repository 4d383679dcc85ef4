//! One decoder layer: attention and feed-forward block, or a mixture of experts, each behind a norm and
//! added to the residual stream.
//!
//! The layer is an autograd graph of its own. It has no state between calls and reads no other layer, so the
//! caller decides what is kept, recomputed or gathered: detach the input, call, and later send a gradient
//! back into the output.

use std::rc::Rc;

use rlt_api::plan::model_config::{HiddenActivation, LatentAttention, ProductRows};
use rlt_torch::{AttentionScores, DeviceSegments, Segments};
use tch::Tensor;

use super::balance::{self, RouterTap};
use super::experts::{ExpertProducts, ExpertWeights, Routes};
use super::latent::LatentProducts;
use super::norms::LayerNorms;
use super::ops;
use super::own_projections::OwnProjections;
use super::placed::PlacedFeatures;
pub use super::products::{DenseProducts, FeedForward, Projections};
use super::projection::{Adapter, Projection, ProjectionWeights};
use super::rope::RopeTables;
use super::routes::RouteWatch;

/// The shared context of all layers in one forward pass.
#[derive(Debug)]
pub struct LayerContext {
    /// Cosines and sines of the stream's positions.
    pub rope: RopeTables,
    /// Where segments start and end in the stream.
    pub cu_seqlens: Vec<i32>,
    /// The segment that each segment continues.
    pub prefixes: Vec<Option<usize>>,
    /// The same where a GPU's attention reads it; `None` on the CPU.
    pub segments: Option<Rc<DeviceSegments>>,
    /// Whether adapters take part.
    pub adapter: Adapter,
    /// Where the tokens that are computed begin in the stream.
    pub first_token: usize,
    /// The seed of the adapters' dropout: the same seed drops the same inputs of a token, so a recomputed
    /// layer agrees with the first pass, and a sequence-parallel one with a whole one. `None` drops nothing.
    pub dropout_seed: Option<u64>,
    /// The observer of the routes of layers with experts.
    pub router: Option<RouterTap>,
    /// The counter of routes for metrics.
    pub routes: Option<RouteWatch>,
    /// Features of images; `None` where there are none, and until a pass has computed them.
    pub(crate) features: Option<PlacedFeatures>,
}

impl LayerContext {
    /// How often each of `tokens` [tokens], those that are computed, counts in the routers' loss.
    pub(crate) fn token_weights(&self, tokens: &Tensor) -> Tensor {
        let computed = (self.first_token, tokens.numel());
        let weights = balance::token_weights(&self.cu_seqlens, &self.prefixes, computed);
        rlt_torch::upload_f32(&weights, tokens.device())
    }

    /// The term of the routers' loss of the layer that has just run.
    pub(crate) fn take_router_term(&self) -> Option<Tensor> {
        self.router.as_ref()?.take_term()
    }

    /// All packed tokens, which attention reads.
    pub fn num_tokens(&self) -> usize {
        self.cu_seqlens.last().map_or(0, |end| *end as usize)
    }
}

/// Queries `[tokens, heads, head_dim]`, then keys and values `[tokens, kv_heads, head_dim]`, rotated.
pub(crate) type QueriesKeysValues = (Tensor, Tensor, Tensor);

/// The weights of one layer and the few numbers that shape its arithmetic.
#[derive(Debug)]
pub struct DecoderLayer {
    pub(crate) shape: LayerShape,
    pub(crate) norms: LayerNorms,
    /// Where some norms are trained beside an adapter: these, and the others as they are.
    pub(crate) saved_norms: Option<LayerNorms>,
    /// A score of each query head without key and value, [heads]; where the model has some.
    pub(crate) sinks: Option<Tensor>,
    /// In checkpoint order; [`LayerShape::products`] has their positions.
    pub(crate) projections: Vec<Projection>,
    /// In place of the feed-forward block, or beside it.
    pub(crate) experts: Option<ExpertWeights>,
}

/// The configuration of a layer.
#[derive(Clone, Debug)]
pub(crate) struct LayerShape {
    pub(crate) head_dim: i64,
    pub(crate) activation: HiddenActivation,
    pub(crate) attention_scale: f64,
    /// The cap of attention scores.
    pub(crate) attention_softcap: Option<f64>,
    /// Whether the feed-forward block has the same input as attention.
    pub(crate) parallel_blocks: bool,
    /// The factor of either block's output before the residual sum.
    pub(crate) residual_scale: f64,
    pub(crate) window: Option<i64>,
    /// Which of the model's rotary embeddings turns queries and keys.
    pub(crate) rope_idx: Option<usize>,
    /// The rows of q, k, v, o, gate, up and down; the last three are absent in layers with experts only.
    pub(crate) products: Vec<ProductRows>,
    /// Latent attention, where the layer has that.
    pub(crate) latent: Option<LatentAttention>,
    /// Which projection is the gate of the feed-forward block beside experts.
    pub(crate) shared_gate_idx: Option<usize>,
    /// Its number in the model.
    pub(crate) layer_idx: usize,
}

impl DecoderLayer {
    /// Runs the layer on packed tokens `hidden_td` [tokens, hidden] with causal attention inside each
    /// sequence, prefixes included.
    pub fn forward(&self, hidden_td: &Tensor, context: &LayerContext) -> Tensor {
        let attended_thd = {
            let (q_thd, k_tkd, v_tkd) = self.before_attention(hidden_td, context);
            self.attend(&q_thd, &k_tkd, &v_tkd, context)
        };
        self.after_attention(hidden_td, &attended_thd, context)
    }

    /// The layer up to attention, token by token: from the residual stream `hidden_td` [tokens,
    /// hidden].
    pub(crate) fn before_attention(&self, hidden_td: &Tensor, context: &LayerContext) -> QueriesKeysValues {
        self.project(hidden_td, &context.rope, &OwnProjections::new(self, context))
    }

    /// Attention over all packed tokens, of any heads that belong together: queries [tokens, heads,
    /// head_dim], keys and values [tokens, kv_heads, head_dim], to [tokens, heads, head_dim].
    pub(crate) fn attend(
        &self,
        q_thd: &Tensor,
        k_tkd: &Tensor,
        v_tkd: &Tensor,
        context: &LayerContext,
    ) -> Tensor {
        if let Some(segments) = &context.segments {
            let AttentionScores { scale, window, .. } = self.scores();
            return rlt_torch::packed_attention(q_thd, k_tkd, v_tkd, segments, scale, window);
        }
        let segments = Segments { cu_seqlens: &context.cu_seqlens, prefixes: &context.prefixes };
        rlt_torch::varlen_attention(q_thd, k_tkd, v_tkd, segments, self.scores())
    }

    /// The layer after attention, token by token: from the residual stream before the layer, [tokens,
    /// hidden], and attention's output, [tokens, heads, head_dim].
    pub(crate) fn after_attention(
        &self,
        hidden_td: &Tensor,
        attended_thd: &Tensor,
        context: &LayerContext,
    ) -> Tensor {
        let Ok(output_td) = self.finish(hidden_td, attended_thd, &OwnProjections::new(self, context));
        self.with_features(output_td, context)
    }

    pub(super) fn with_features(&self, output_td: Tensor, context: &LayerContext) -> Tensor {
        match &context.features {
            Some(features) => features.added_after(self.shape.layer_idx, output_td),
            None => output_td,
        }
    }

    /// The body of the layer, the same for training and rollout. `attend` gets queries [tokens, heads,
    /// head_dim] and keys and values [tokens, kv_heads, head_dim], rotated, and returns [tokens, heads,
    /// head_dim]: all of the model's heads, or those in the shard of `projections`.
    ///
    /// # Errors
    /// Why `projections` could not multiply.
    pub fn forward_with<P: Projections>(
        &self,
        hidden_td: &Tensor,
        rope: &RopeTables,
        projections: &P,
        attend: &mut dyn FnMut(&Tensor, &Tensor, &Tensor) -> Tensor,
    ) -> Result<Tensor, P::Error> {
        let (q_thd, k_tkd, v_tkd) = self.project(hidden_td, rope, projections);
        let attended_thd = attend(&q_thd, &k_tkd, &v_tkd);
        self.finish(hidden_td, &attended_thd, projections)
    }

    fn project(
        &self,
        hidden_td: &Tensor,
        rope: &RopeTables,
        projections: &impl Projections,
    ) -> QueriesKeysValues {
        let normed_td = self.normed_input(hidden_td, projections.adapter());
        self.project_normed(&normed_td, rope, projections)
    }

    /// The input of attention's products, [tokens, hidden].
    pub(super) fn normed_input(&self, hidden_td: &Tensor, adapter: Adapter) -> Tensor {
        let norms = self.norms(adapter);
        norms.apply(norms.before_attention.as_ref(), hidden_td.shallow_clone())
    }

    /// Queries, keys and values of attention's normed input.
    pub(super) fn project_normed(
        &self,
        normed_td: &Tensor,
        rope: &RopeTables,
        projections: &impl Projections,
    ) -> QueriesKeysValues {
        let norms = self.norms(projections.adapter());
        let &LayerShape { head_dim, rope_idx, .. } = &self.shape;
        if let Some(latent) = &self.shape.latent {
            return self.project_latent(normed_td, rope, (latent, norms), &projections.latent());
        }
        let (q, k, v) = projections.qkv(normed_td);
        let q_thd = rope.turn(norms.heads(norms.queries.as_ref(), &q, head_dim), rope_idx);
        let k_tkd = rope.turn(norms.heads(norms.keys.as_ref(), &k, head_dim), rope_idx);
        (q_thd, k_tkd, v.unflatten(-1, [-1, head_dim]))
    }

    fn finish<P: Projections>(
        &self,
        hidden_td: &Tensor,
        attended_thd: &Tensor,
        projections: &P,
    ) -> Result<Tensor, P::Error> {
        let (hidden_td, normed_td) = self.before_mlp(hidden_td, attended_thd, projections)?;
        let mlp_td = match projections.feed_forward() {
            FeedForward::Dense(block) => self.feed_forward(&normed_td, &block)?,
            FeedForward::Experts { experts, beside } => self.mix(&normed_td, &experts, beside.as_ref())?,
        };
        Ok(self.after_mlp(&hidden_td, mlp_td, projections.adapter()))
    }

    /// The residual stream after attention, and the input of the feed-forward block, both [tokens, hidden].
    pub(super) fn before_mlp<P: Projections>(
        &self,
        hidden_td: &Tensor,
        attended_thd: &Tensor,
        projections: &P,
    ) -> Result<(Tensor, Tensor), P::Error> {
        let attention_td = self.attention_output(attended_thd, projections)?;
        Ok(self.after_attention_output(hidden_td, attention_td, projections.adapter()))
    }

    /// The output of attention's products, [tokens, hidden].
    pub(super) fn attention_output<P: Projections>(
        &self,
        attended_thd: &Tensor,
        projections: &P,
    ) -> Result<Tensor, P::Error> {
        let attended = match self.shape.latent {
            Some(_) => projections.latent().values(attended_thd),
            None => attended_thd.flatten(1, 2),
        };
        projections.output(&attended)
    }

    /// The residual stream after attention, and the input of the feed-forward block, both [tokens, hidden].
    pub(super) fn after_attention_output(
        &self,
        hidden_td: &Tensor,
        attention_td: Tensor,
        adapter: Adapter,
    ) -> (Tensor, Tensor) {
        let norms = self.norms(adapter);
        let beside_td = self.shape.parallel_blocks.then(|| hidden_td.shallow_clone());
        let hidden_td = self.add(hidden_td, norms.apply(norms.after_attention.as_ref(), attention_td));
        let normed_td = match beside_td {
            Some(input_td) => norms.apply(norms.before_attention.as_ref(), input_td),
            None => norms.apply(norms.before_mlp.as_ref(), hidden_td.shallow_clone()),
        };
        (hidden_td, normed_td)
    }

    /// The layer's output from the residual stream and the output of the feed-forward block.
    pub(super) fn after_mlp(&self, hidden_td: &Tensor, mlp_td: Tensor, adapter: Adapter) -> Tensor {
        let norms = self.norms(adapter);
        self.add(hidden_td, norms.apply(norms.after_mlp.as_ref(), mlp_td))
    }

    /// The feed-forward block, [tokens, hidden] to [tokens, hidden].
    pub(super) fn feed_forward<D: DenseProducts>(
        &self,
        normed_td: &Tensor,
        block: &D,
    ) -> Result<Tensor, D::Error> {
        let (gate, up) = block.gate_up(normed_td);
        let activated = ops::gated_activation(&gate, &up, self.shape.activation);
        block.down(&activated)
    }

    /// The experts of each token, and the block beside them.
    fn mix<E: ExpertProducts>(
        &self,
        normed_td: &Tensor,
        experts: &E,
        beside: Option<&impl DenseProducts<Error = E::Error>>,
    ) -> Result<Tensor, E::Error> {
        let routes = routed(normed_td, experts);
        let mixed_td = experts.outputs(normed_td, &routes)?;
        self.with_beside(mixed_td, normed_td, experts, beside)
    }

    /// The output of the experts with that of the block beside them.
    pub(super) fn with_beside<E: ExpertProducts>(
        &self,
        mixed_td: Tensor,
        normed_td: &Tensor,
        experts: &E,
        beside: Option<&impl DenseProducts<Error = E::Error>>,
    ) -> Result<Tensor, E::Error> {
        let Some(block) = beside else { return Ok(mixed_td) };
        let block_td = self.feed_forward(normed_td, block)?;
        Ok(match experts.shared_gate(normed_td) {
            Some(gate_t1) => mixed_td + gate_t1.sigmoid() * block_td,
            None => mixed_td + block_td,
        })
    }

    /// The residual sum.
    fn add(&self, hidden_td: &Tensor, block_td: Tensor) -> Tensor {
        if self.shape.residual_scale == 1.0 {
            return hidden_td + block_td;
        }
        hidden_td + block_td * self.shape.residual_scale
    }

    /// The factor of queries before the softmax.
    pub fn attention_scale(&self) -> f64 {
        self.shape.attention_scale
    }

    /// How products of queries and keys become weights.
    pub fn scores(&self) -> AttentionScores<'_> {
        AttentionScores {
            scale: self.shape.attention_scale,
            window: self.shape.window,
            softcap: self.shape.attention_softcap,
            sinks: self.sinks.as_ref(),
        }
    }

    /// The gate's function.
    pub(crate) fn activation(&self) -> HiddenActivation {
        self.shape.activation
    }

    /// How many tokens a query of this layer sees, itself included; `None` sees all before it.
    pub fn window(&self) -> Option<i64> {
        self.shape.window
    }

    /// Which of the model's rotary embeddings turns queries and keys; `None` turns nothing.
    pub(crate) fn rope_idx(&self) -> Option<usize> {
        self.shape.rope_idx
    }

    /// The weights of `LayerShape::products`, adapters folded in where `adapter` is on; the base stays as
    /// it is. The results share storage with the model where no adapter was added.
    pub fn merged_projection_weights(&self, adapter: Adapter) -> Vec<ProjectionWeights> {
        let merged: Vec<_> = self.projections.iter().map(|projection| projection.merged(adapter)).collect();
        let product = |of: &ProductRows| merged[of.projection_idx].rows(&of.rows);
        self.shape.products.iter().map(product).collect()
    }

    /// The projection to the latent of queries, where they have one.
    pub(crate) fn query_latent(&self) -> Option<&Projection> {
        // The first one.
        self.shape.latent.as_ref()?.query_rank.map(|_| &self.projections[0])
    }

    /// Router and experts, where the layer has some.
    pub(crate) fn experts(&self) -> Option<&ExpertWeights> {
        self.experts.as_ref()
    }

    /// The gate of the feed-forward block beside experts.
    pub(crate) fn shared_gate(&self) -> Option<&Projection> {
        self.shape.shared_gate_idx.map(|idx| &self.projections[idx])
    }

    /// Whether some of the linear layers have 4 or 8 bits.
    pub(crate) fn is_quantized(&self) -> bool {
        self.projections.iter().any(|projection| projection.weight.as_quantized().is_some())
    }

    /// The factor of either block's output before the residual sum.
    pub(crate) fn residual_scale(&self) -> f64 {
        self.shape.residual_scale
    }

    /// The positions of q, k, v, o, gate, up and down among the linear layers.
    pub(crate) fn products(&self) -> &[ProductRows] {
        &self.shape.products
    }

    /// The linear layers, in checkpoint order.
    pub fn projections(&self) -> &[Projection] {
        &self.projections
    }
}

/// The routes of tokens, which are observed.
pub(super) fn routed(normed_td: &Tensor, experts: &impl ExpertProducts) -> Routes {
    let routes = experts.mixture().route(&experts.scores(normed_td), experts.choice_bias());
    experts.observe(&routes);
    routes
}
