//! One decoder layer: attention and feed-forward block, or a mixture of experts, each behind a norm and
//! added to the residual stream.
//!
//! The layer is an autograd graph of its own. It has no state between calls and reads no other layer, so the
//! caller decides what is kept, recomputed or gathered: detach the input, call the layer, and later send a
//! gradient back into the output.

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

/// Inputs that all layers share in one forward pass.
#[derive(Debug)]
pub struct LayerContext {
    /// Cosines and sines of the packed tokens' positions.
    pub rope: RopeTables,
    /// Start of each segment in the packed row, and the row's length at the end: segments + 1 entries from 0.
    pub cu_seqlens: Vec<i32>,
    /// Index of the earlier segment that each segment continues, a completion its prompt.
    pub prefixes: Vec<Option<usize>>,
    /// `cu_seqlens` and `prefixes` as a GPU's attention reads them; `None` on the CPU.
    pub segments: Option<Rc<DeviceSegments>>,
    /// Whether adapters take part.
    pub adapter: Adapter,
    /// Index in the packed row of the first token of this rank's shard.
    pub first_token: usize,
    /// Seed of the adapters' dropout; `None` drops nothing. The same seed drops the same inputs of a token,
    /// so that a recomputed layer agrees with the first pass, and a sequence-parallel one with a full one.
    pub dropout_seed: Option<u64>,
    /// Observer of the routes, for the routers' loss.
    pub router: Option<RouterTap>,
    /// Counter of routes, for metrics.
    pub routes: Option<RouteWatch>,
    /// Features of images; `None` without images, and until a pass has computed them.
    pub(crate) features: Option<PlacedFeatures>,
}

impl LayerContext {
    /// Weight of each of `tokens` [tokens], those of this rank's shard, in the routers' loss.
    pub(crate) fn token_weights(&self, tokens: &Tensor) -> Tensor {
        let num_tokens = tokens.numel();
        let weights = balance::token_weights(&self.cu_seqlens, &self.prefixes, self.first_token, num_tokens);
        rlt_torch::upload_f32(&weights, tokens.device())
    }

    /// Takes the routers' loss term of the layer that has just run.
    pub(crate) fn take_router_term(&self) -> Option<Tensor> {
        self.router.as_ref()?.take_term()
    }

    /// Number of all packed tokens, which attention reads.
    pub fn num_tokens(&self) -> usize {
        self.cu_seqlens.last().map_or(0, |end| *end as usize)
    }
}

/// Queries `[tokens, heads, head_dim]`, then keys and values `[tokens, kv_heads, head_dim]`, rotated.
pub(crate) type QueriesKeysValues = (Tensor, Tensor, Tensor);

/// Weights of one layer, with its configuration.
#[derive(Debug)]
pub struct DecoderLayer {
    pub(crate) shape: LayerShape,
    pub(crate) norms: LayerNorms,
    /// Norms used with the adapter, if some are trained with it (`modulesToSave`): those, and the others
    /// unchanged.
    pub(crate) saved_norms: Option<LayerNorms>,
    /// Score of each query head that has no key and value (attention sink), [heads]; `None` if the model has
    /// none.
    pub(crate) sinks: Option<Tensor>,
    /// Linear layers in checkpoint order; [`LayerShape::products`] has their positions.
    pub(crate) projections: Vec<Projection>,
    /// Experts instead of the feed-forward block, which is then absent or a shared expert.
    pub(crate) experts: Option<ExpertWeights>,
}

/// Configuration of a layer.
#[derive(Clone, Debug)]
pub(crate) struct LayerShape {
    pub(crate) head_dim: i64,
    pub(crate) activation: HiddenActivation,
    pub(crate) attention_scale: f64,
    /// Softcap of attention scores.
    pub(crate) attention_softcap: Option<f64>,
    /// Whether the feed-forward block has the same input as attention, and runs in parallel with it.
    pub(crate) parallel_blocks: bool,
    /// Factor of either block's output before the residual sum.
    pub(crate) residual_scale: f64,
    pub(crate) window: Option<i64>,
    /// Index among the model's rotary embeddings of the one for queries and keys; `None` for none.
    pub(crate) rope_idx: Option<usize>,
    /// Rows of q, k, v, o, gate, up and down in `projections`; without a feed-forward block the last three
    /// are absent.
    pub(crate) products: Vec<ProductRows>,
    /// Latent attention, if the layer has it.
    pub(crate) latent: Option<LatentAttention>,
    /// Index among `projections` of the shared expert's gate.
    pub(crate) shared_gate_idx: Option<usize>,
    /// Index of the layer in the model.
    pub(crate) layer_idx: usize,
}

impl DecoderLayer {
    /// Runs the layer on packed tokens `hidden_td` [tokens, hidden], with causal attention inside each
    /// sequence, its prefix included.
    pub fn forward(&self, hidden_td: &Tensor, context: &LayerContext) -> Tensor {
        let attended_thd = {
            let (q_thd, k_tkd, v_tkd) = self.before_attention(hidden_td, context);
            self.attend(&q_thd, &k_tkd, &v_tkd, context)
        };
        self.after_attention(hidden_td, &attended_thd, context)
    }

    /// Runs the layer up to attention, token by token, on the residual stream `hidden_td` [tokens, hidden].
    pub(crate) fn before_attention(&self, hidden_td: &Tensor, context: &LayerContext) -> QueriesKeysValues {
        self.project(hidden_td, &context.rope, &OwnProjections::new(self, context))
    }

    /// Attention over all packed tokens for some heads: queries [tokens, heads, head_dim], keys and values
    /// [tokens, kv_heads, head_dim], to [tokens, heads, head_dim]. Query heads must come with their key
    /// heads.
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

    /// Runs the layer after attention, token by token: from the residual stream before the layer, [tokens,
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

    /// Runs the body of the layer, which training and rollout share. `attend` gets rotated queries [tokens,
    /// heads, head_dim] and keys, and values, [tokens, kv_heads, head_dim], and returns [tokens, heads,
    /// head_dim]: all of the model's heads, or those in the shard of `projections`.
    ///
    /// # Errors
    /// The error of `projections`.
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

    /// The normed input of attention's products, [tokens, hidden].
    pub(super) fn normed_input(&self, hidden_td: &Tensor, adapter: Adapter) -> Tensor {
        let norms = self.norms(adapter);
        norms.apply(norms.before_attention.as_ref(), hidden_td.shallow_clone())
    }

    /// Queries, keys and values from attention's normed input, rotated.
    pub(super) fn project_normed(
        &self,
        normed_td: &Tensor,
        rope: &RopeTables,
        projections: &impl Projections,
    ) -> QueriesKeysValues {
        let norms = self.norms(projections.adapter());
        let &LayerShape { head_dim, rope_idx, .. } = &self.shape;
        if let Some(latent) = &self.shape.latent {
            return self.project_latent(normed_td, rope, latent, norms, &projections.latent());
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

    /// The residual stream after attention, and the normed input of the feed-forward block, both [tokens,
    /// hidden].
    pub(super) fn before_mlp<P: Projections>(
        &self,
        hidden_td: &Tensor,
        attended_thd: &Tensor,
        projections: &P,
    ) -> Result<(Tensor, Tensor), P::Error> {
        let attention_td = self.attention_output(attended_thd, projections)?;
        Ok(self.after_attention_output(hidden_td, attention_td, projections.adapter()))
    }

    /// Attention's output projected to [tokens, hidden].
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

    /// The residual stream after attention, and the normed input of the feed-forward block, both [tokens,
    /// hidden].
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

    /// The layer's output, from the residual stream and the output of the feed-forward block.
    pub(super) fn after_mlp(&self, hidden_td: &Tensor, mlp_td: Tensor, adapter: Adapter) -> Tensor {
        let norms = self.norms(adapter);
        self.add(hidden_td, norms.apply(norms.after_mlp.as_ref(), mlp_td))
    }

    /// Computes the feed-forward block, [tokens, hidden] to [tokens, hidden].
    pub(super) fn feed_forward<D: DenseProducts>(
        &self,
        normed_td: &Tensor,
        block: &D,
    ) -> Result<Tensor, D::Error> {
        let (gate, up) = block.gate_up(normed_td);
        let activated = ops::gated_activation(&gate, &up, self.shape.activation);
        block.down(&activated)
    }

    /// Computes the chosen experts of each token, and the shared expert.
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

    /// Adds the output of the shared expert to that of the chosen experts.
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

    /// Adds a block's output to the residual stream.
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

    /// Scale, window, softcap and sinks of attention.
    pub fn scores(&self) -> AttentionScores<'_> {
        AttentionScores {
            scale: self.shape.attention_scale,
            window: self.shape.window,
            softcap: self.shape.attention_softcap,
            sinks: self.sinks.as_ref(),
        }
    }

    /// Activation function of the gate.
    pub(crate) fn activation(&self) -> HiddenActivation {
        self.shape.activation
    }

    /// Number of tokens that a query attends to, itself included; `None` if it attends to all before it.
    pub fn window(&self) -> Option<i64> {
        self.shape.window
    }

    /// Index among the model's rotary embeddings of the one for queries and keys; `None` for none.
    pub(crate) fn rope_idx(&self) -> Option<usize> {
        self.shape.rope_idx
    }

    /// The weights of `LayerShape::products`, with adapters folded in if `adapter` is on; the base is not
    /// changed. The results share storage with the model if no adapter was folded in.
    pub fn merged_projection_weights(&self, adapter: Adapter) -> Vec<ProjectionWeights> {
        let merged: Vec<_> = self.projections.iter().map(|projection| projection.merged(adapter)).collect();
        let product = |of: &ProductRows| merged[of.projection_idx].rows(&of.rows);
        self.shape.products.iter().map(product).collect()
    }

    /// The projection to the latent of queries; `None` if they have none.
    pub(crate) fn query_latent(&self) -> Option<&Projection> {
        // The first projection.
        self.shape.latent.as_ref()?.query_rank.map(|_| &self.projections[0])
    }

    /// Router and experts; `None` if the layer has none.
    pub(crate) fn experts(&self) -> Option<&ExpertWeights> {
        self.experts.as_ref()
    }

    /// The projection of the shared expert's gate.
    pub(crate) fn shared_gate(&self) -> Option<&Projection> {
        self.shape.shared_gate_idx.map(|idx| &self.projections[idx])
    }

    /// Whether any linear layer of the layer has 4 or 8 bits.
    pub(crate) fn is_quantized(&self) -> bool {
        self.projections.iter().any(|projection| projection.weight.as_quantized().is_some())
    }

    /// Factor of either block's output before the residual sum.
    pub(crate) fn residual_scale(&self) -> f64 {
        self.shape.residual_scale
    }

    /// Positions of q, k, v, o, gate, up and down among the linear layers.
    pub(crate) fn products(&self) -> &[ProductRows] {
        &self.shape.products
    }

    /// The linear layers, in checkpoint order.
    pub fn projections(&self) -> &[Projection] {
        &self.projections
    }
}

/// Routes tokens, and passes the routes to the observer.
pub(super) fn routed(normed_td: &Tensor, experts: &impl ExpertProducts) -> Routes {
    let routes = experts.mixture().route(&experts.scores(normed_td), experts.choice_bias());
    experts.observe(&routes);
    routes
}
