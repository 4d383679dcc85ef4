//! One decoder layer: attention and feed-forward block, or a mixture of experts, each behind a norm and
//! added to the residual stream. This file has its weights; [`super::segments`] computes with them.
//!
//! The layer is an autograd graph of its own. It has no state between calls and reads no other layer, so the
//! caller decides what is kept, recomputed or gathered: detach the input, call the layer, and later send a
//! gradient back into the output.

use std::cell::OnceCell;
use std::rc::Rc;

use rlt_models::{HiddenActivation, LatentAttention, ProductRows};
use rlt_torch::{AttentionScores, DeviceSegments};
use tch::Tensor;

use super::balance::{self, RouterObserver};
use super::experts::ExpertWeights;
use super::image_embeddings::ImageEmbeddings;
use super::norms::LayerNorms;
pub use super::products::{DenseProducts, FeedForward, Projections};
use super::projection::{Adapter, Linear, ProjectionWeights};
use super::rope::RopeTables;
use super::routes::RouteCounter;

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
    /// Whether adapters are applied.
    pub adapter: Adapter,
    /// Index in the packed row of the first token of this rank's shard.
    pub first_token: usize,
    /// Seed of the adapters' dropout; `None` drops nothing. The same seed drops the same inputs of a token,
    /// so that a recomputed layer agrees with the first pass, and a sequence-parallel one with a full one.
    pub dropout_seed: Option<u64>,
    /// Observer of the routes, for the routers' loss.
    pub router: Option<RouterObserver>,
    /// Counter of routes, for metrics.
    pub routes: Option<RouteCounter>,
    /// Features of images; `None` without images, and until a pass has computed them.
    pub features: Option<ImageEmbeddings>,
}

impl LayerContext {
    /// Weight of each of `tokens` [tokens], those of this rank's shard, in the routers' loss.
    pub fn token_weights(&self, tokens: &Tensor) -> Tensor {
        let num_tokens = tokens.numel();
        let weights = balance::token_weights(&self.cu_seqlens, &self.prefixes, self.first_token, num_tokens);
        rlt_torch::upload_f32(&weights, tokens.device())
    }

    /// Takes the routers' loss term of the layer that has just run.
    pub fn take_router_term(&self) -> Option<Tensor> {
        self.router.as_ref()?.take_term()
    }

    /// Number of all packed tokens, which attention reads.
    pub fn num_tokens(&self) -> usize {
        self.cu_seqlens.last().map_or(0, |end| *end as usize)
    }
}

/// Queries `[tokens, heads, head_dim]`, then keys and values `[tokens, kv_heads, head_dim]`, rotated.
pub(super) type QueriesKeysValues = (Tensor, Tensor, Tensor);

/// Weights of one layer, with its configuration.
#[derive(Debug)]
pub struct DecoderLayer {
    pub(crate) shape: LayerShape,
    /// Rows of q, k, v, o, gate, up and down in this rank's shards of `projections`; set when they are
    /// sharded.
    pub(crate) local_products: OnceCell<Vec<ProductRows>>,
    /// Norms of the layer by position.
    pub norms: LayerNorms,
    /// Norms to use with the adapter if it trains some of them (`modulesToSave`): trained copies of these,
    /// and the others unchanged.
    pub(crate) saved_norms: Option<LayerNorms>,
    /// Attention sinks, [heads]: a score for each query head, without a key and value; `None` if the model
    /// has none.
    pub(crate) sinks: Option<Tensor>,
    /// Linear layers in checkpoint order; [`LayerShape::products`] has their positions.
    pub(crate) projections: Vec<Linear>,
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
    /// Index of the layer's rotary embedding among those of the model; `None` if the layer has none.
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
        let products = self.training_products(context);
        let mut attend =
            |q_thd: &Tensor, k_tkd: &Tensor, v_tkd: &Tensor| self.attend(q_thd, k_tkd, v_tkd, context);
        let Ok(output_td) = self.forward_with(hidden_td, &context.rope, &products, &mut attend);
        self.with_features(output_td, context)
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
    pub fn activation(&self) -> HiddenActivation {
        self.shape.activation
    }

    /// Number of tokens that a query attends to, itself included; `None` if it attends to all before it.
    pub fn window(&self) -> Option<i64> {
        self.shape.window
    }

    /// Index of the layer's rotary embedding among those of the model; `None` if the layer has none.
    pub fn rope_idx(&self) -> Option<usize> {
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
    pub fn query_latent(&self) -> Option<&Linear> {
        // The first projection.
        self.shape.latent.as_ref()?.query_rank.map(|_| &self.projections[0])
    }

    /// Router and experts; `None` if the layer has none.
    pub fn experts(&self) -> Option<&ExpertWeights> {
        self.experts.as_ref()
    }

    /// The projection of the shared expert's gate.
    pub fn shared_gate(&self) -> Option<&Linear> {
        self.shape.shared_gate_idx.map(|idx| &self.projections[idx])
    }

    /// Whether any linear layer of the layer has 4 or 8 bits.
    pub fn is_quantized(&self) -> bool {
        self.projections.iter().any(|projection| projection.weight.as_quantized().is_some())
    }

    /// Factor of either block's output before the residual sum.
    pub fn residual_scale(&self) -> f64 {
        self.shape.residual_scale
    }

    /// Positions of q, k, v, o, gate, up and down among the linear layers.
    pub fn products(&self) -> &[ProductRows] {
        &self.shape.products
    }

    /// Positions of q, k, v, o, gate, up and down in this rank's shards of the linear layers.
    pub(crate) fn local_products(&self) -> &[ProductRows] {
        self.local_products.get().unwrap_or(&self.shape.products)
    }

    /// Index of the layer in the model.
    pub fn layer_idx(&self) -> usize {
        self.shape.layer_idx
    }

    /// The linear layers, in checkpoint order.
    pub fn projections(&self) -> &[Linear] {
        &self.projections
    }
}
