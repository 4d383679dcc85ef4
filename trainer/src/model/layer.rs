//! One decoder layer: attention and feed-forward block, each behind a norm and added to the residual stream.
//!
//! The layer is an autograd island. It holds no state between calls and reaches no other layer, so the caller
//! decides what is kept, recomputed or gathered: detach the input, call, and later send a gradient back into
//! the output.

use std::convert::Infallible;
use std::rc::Rc;

use rlt_api::plan::model_config::HiddenActivation;
use rlt_torch::{DeviceSegments, Segments};
use tch::Tensor;

use super::ops;
use super::projection::{Adapter, Dropout, Projection, ProjectionWeights};
use super::rope::Rope;

/// What all layers of one forward pass share.
#[derive(Debug)]
pub struct LayerContext {
    /// Cosines and sines of the stream's positions.
    pub rope: Rope,
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
    /// What the adapters' dropout is drawn from; the same seed drops the same inputs of a token, so a
    /// recomputed layer agrees with the first run, and one whose tokens are divided with one that has all.
    /// `None` drops nothing.
    pub dropout_seed: Option<u64>,
}

impl LayerContext {
    /// Tokens of the stream, all of which attention looks at.
    pub fn num_tokens(&self) -> usize {
        self.cu_seqlens.last().map_or(0, |end| *end as usize)
    }
}

/// Queries `[tokens, heads, head_dim]`, then keys and values `[tokens, kv_heads, head_dim]`, rotated.
pub(crate) type QueriesKeysValues = (Tensor, Tensor, Tensor);

/// The linear layers of a decoder layer as someone prepared them: the trainer's own with autograd and
/// adapters, or an engine's packed ones. Inputs and outputs are [tokens, features] in the compute dtype.
pub trait Projections {
    /// Why a product of which several ranks have a slice each could not be made; nothing fails where all of
    /// it is here.
    type Error;
    /// Queries [tokens, heads * head_dim], then keys and values [tokens, kv_heads * head_dim].
    fn qkv(&self, normed_td: &Tensor) -> (Tensor, Tensor, Tensor);
    /// The attention's output, from [tokens, heads * head_dim] to [tokens, hidden].
    ///
    /// # Errors
    /// [`Self::Error`].
    fn output(&self, attended: &Tensor) -> Result<Tensor, Self::Error>;
    /// Gate and up [tokens, intermediate].
    fn gate_up(&self, normed_td: &Tensor) -> (Tensor, Tensor);
    /// From [tokens, intermediate] to [tokens, hidden].
    ///
    /// # Errors
    /// [`Self::Error`].
    fn down(&self, activated: &Tensor) -> Result<Tensor, Self::Error>;
}

/// The weights of one layer and the few numbers that shape its arithmetic.
#[derive(Debug)]
pub struct DecoderLayer {
    pub(crate) shape: LayerShape,
    pub(crate) input_norm: Tensor,
    pub(crate) post_attention_norm: Tensor,
    pub(crate) qk_norm: Option<(Tensor, Tensor)>,
    /// q, k, v, o, gate, up, down.
    pub(crate) projections: Vec<Projection>,
}

/// What a layer needs to know of the configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerShape {
    pub(crate) head_dim: i64,
    pub(crate) norm_eps: f64,
    pub(crate) norm_offset: f64,
    pub(crate) activation: HiddenActivation,
    pub(crate) attention_scale: f64,
    pub(crate) window: Option<i64>,
}

impl DecoderLayer {
    /// Runs the layer on a packed stream `hidden_td` [tokens, hidden] with causal attention inside each
    /// sequence, prefixes included.
    pub fn forward(&self, hidden_td: &Tensor, context: &LayerContext) -> Tensor {
        let attended_thd = {
            let (q_thd, k_tkd, v_tkd) = self.before_attention(hidden_td, context);
            self.attend(&q_thd, &k_tkd, &v_tkd, context)
        };
        self.after_attention(hidden_td, &attended_thd, context)
    }

    /// The layer up to attention: each token by itself, from the residual stream `hidden_td` [tokens,
    /// hidden].
    pub(crate) fn before_attention(&self, hidden_td: &Tensor, context: &LayerContext) -> QueriesKeysValues {
        self.project(hidden_td, &context.rope, &OwnProjections { layer: self, context })
    }

    /// Attention over a whole stream, of any heads that belong together: queries [tokens, heads, head_dim],
    /// keys and values [tokens, kv_heads, head_dim], to [tokens, heads, head_dim].
    pub(crate) fn attend(
        &self,
        q_thd: &Tensor,
        k_tkd: &Tensor,
        v_tkd: &Tensor,
        context: &LayerContext,
    ) -> Tensor {
        if let Some(segments) = &context.segments {
            let (scale, window) = (self.attention_scale(), self.window());
            return rlt_torch::packed_attention(q_thd, k_tkd, v_tkd, segments, scale, window);
        }
        let segments = Segments { cu_seqlens: &context.cu_seqlens, prefixes: &context.prefixes };
        rlt_torch::varlen_attention(q_thd, k_tkd, v_tkd, segments, self.attention_scale(), self.window())
    }

    /// The layer behind attention: each token by itself, from the residual stream before the layer, [tokens,
    /// hidden], and what attention made, [tokens, heads, head_dim].
    pub(crate) fn after_attention(
        &self,
        hidden_td: &Tensor,
        attended_thd: &Tensor,
        context: &LayerContext,
    ) -> Tensor {
        let Ok(output_td) = self.finish(hidden_td, attended_thd, &OwnProjections { layer: self, context });
        output_td
    }

    /// The body of the layer, the same for training and rollout. `attend` gets queries [tokens, heads,
    /// head_dim] and keys and values [tokens, kv_heads, head_dim], rotated, and gives back [tokens, heads,
    /// head_dim]. All of the model's heads, or those of which `projections` have the slice.
    ///
    /// # Errors
    /// Why `projections` could not multiply.
    pub fn forward_with<P: Projections>(
        &self,
        hidden_td: &Tensor,
        rope: &Rope,
        projections: &P,
        attend: &mut dyn FnMut(&Tensor, &Tensor, &Tensor) -> Tensor,
    ) -> Result<Tensor, P::Error> {
        let (q_thd, k_tkd, v_tkd) = self.project(hidden_td, rope, projections);
        let attended_thd = attend(&q_thd, &k_tkd, &v_tkd);
        self.finish(hidden_td, &attended_thd, projections)
    }

    fn project(&self, hidden_td: &Tensor, rope: &Rope, projections: &impl Projections) -> QueriesKeysValues {
        let normed_td = self.norm(hidden_td, &self.input_norm);
        let (q, k, v) = projections.qkv(&normed_td);
        let (q_thd, k_tkd) = self.norm_heads(self.split_heads(&q), self.split_heads(&k));
        let q_thd = rlt_torch::apply_rope(&q_thd, &rope.cos_td, &rope.sin_td);
        let k_tkd = rlt_torch::apply_rope(&k_tkd, &rope.cos_td, &rope.sin_td);
        (q_thd, k_tkd, self.split_heads(&v))
    }

    fn finish<P: Projections>(
        &self,
        hidden_td: &Tensor,
        attended_thd: &Tensor,
        projections: &P,
    ) -> Result<Tensor, P::Error> {
        let hidden_td = hidden_td + projections.output(&attended_thd.flatten(1, 2))?;
        let normed_td = self.norm(&hidden_td, &self.post_attention_norm);
        let (gate, up) = projections.gate_up(&normed_td);
        let activated = ops::gated_activation(&gate, &up, self.shape.activation);
        Ok(hidden_td + projections.down(&activated)?)
    }

    /// What queries are multiplied with before the softmax.
    pub fn attention_scale(&self) -> f64 {
        self.shape.attention_scale
    }

    /// How many tokens a query of this layer sees, itself included; `None` sees all before it.
    pub fn window(&self) -> Option<i64> {
        self.shape.window
    }

    /// The weights of q, k, v, o, gate, up and down, adapters folded in where `adapter` is on; the base stays
    /// as it is. What is returned shares storage with the model wherever nothing had to be added.
    pub fn merged_projection_weights(&self, adapter: Adapter) -> Vec<ProjectionWeights> {
        self.projections.iter().map(|projection| projection.merged(adapter)).collect()
    }

    /// The seven linear layers: q, k, v, o, gate, up, down.
    pub fn projections(&self) -> &[Projection] {
        &self.projections
    }

    fn norm(&self, x: &Tensor, weight: &Tensor) -> Tensor {
        ops::rms_norm(x, weight, self.shape.norm_eps, self.shape.norm_offset)
    }

    fn norm_heads(&self, q_thd: Tensor, k_tkd: Tensor) -> (Tensor, Tensor) {
        match &self.qk_norm {
            Some((q_norm, k_norm)) => (self.norm(&q_thd, q_norm), self.norm(&k_tkd, k_norm)),
            None => (q_thd, k_tkd),
        }
    }

    fn split_heads(&self, x: &Tensor) -> Tensor {
        x.unflatten(-1, [-1, self.shape.head_dim])
    }
}

/// The layer's own weights: differentiable, adapters applied unmerged.
struct OwnProjections<'a> {
    layer: &'a DecoderLayer,
    context: &'a LayerContext,
}

impl OwnProjections<'_> {
    fn apply(&self, projection_idx: usize, x: &Tensor) -> Tensor {
        let LayerContext { adapter, dropout_seed, first_token, .. } = *self.context;
        let dropout = dropout_seed.map(|seed| Dropout { seed, first_token });
        self.layer.projections[projection_idx].forward(x, adapter, dropout)
    }
}

impl Projections for OwnProjections<'_> {
    type Error = Infallible;

    fn qkv(&self, normed_td: &Tensor) -> (Tensor, Tensor, Tensor) {
        (self.apply(0, normed_td), self.apply(1, normed_td), self.apply(2, normed_td))
    }

    fn output(&self, attended: &Tensor) -> Result<Tensor, Infallible> {
        Ok(self.apply(3, attended))
    }

    fn gate_up(&self, normed_td: &Tensor) -> (Tensor, Tensor) {
        (self.apply(4, normed_td), self.apply(5, normed_td))
    }

    fn down(&self, activated: &Tensor) -> Result<Tensor, Infallible> {
        Ok(self.apply(6, activated))
    }
}
