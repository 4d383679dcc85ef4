//! The segments of a decoder layer, in the order in which they run. Training and rollout call the same ones;
//! between them ranks may exchange tensors, by the styles of `rlt_parallel`.
//!
//! ```text
//! attention_input     norm before attention            attend              attention of some heads
//! heads               q, k, v, rotated                 attention_output    o
//! after_attention     residual sum, norm before the block
//! feed_forward        gate, up, down                   or, with experts:
//! route               chosen experts and weights       experts_of_rows     experts on rows of tokens
//! add_shared_expert   a block for all tokens           after_feed_forward  residual sum
//! ```
//! Every segment computes token by token, except `attend`. With tensor parallelism `attention_output`,
//! `feed_forward` and the experts return a rank's summand of [tokens, hidden].
//!
//! Shapes: t tokens, d hidden width, m rows of tokens sorted by expert.

use rlt_layout::AxisPlace;
use rlt_torch::{AttentionScores, ExpertRows, Segments};
use tch::Tensor;

use super::experts::{ExpertProducts, RoutedTokens};
use super::latent::LatentProducts;
use super::layer::{DecoderLayer, LayerContext, LayerShape, QueriesKeysValues};
use super::ops;
use super::products::{DenseProducts, FeedForward, Projections};
use super::projection::Adapter;
use super::rope::RopeTables;

impl DecoderLayer {
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
        let adapter = projections.adapter();
        let attended_thd = {
            let (q_thd, k_tkd, v_tkd) = {
                let normed_td = self.attention_input(hidden_td, adapter);
                self.heads(&normed_td, rope, projections)
            };
            attend(&q_thd, &k_tkd, &v_tkd)
        };
        let attention_td = self.attention_output(&attended_thd, projections)?;
        let (hidden_td, normed_td) = self.after_attention(hidden_td, attention_td, adapter);
        let mlp_td = match projections.feed_forward() {
            FeedForward::Dense(block) => self.feed_forward(&normed_td, &block)?,
            FeedForward::Experts { experts, shared_expert } => {
                let routes = self.route(&normed_td, &experts);
                let mixed_td = experts.outputs(&normed_td, &routes)?;
                self.add_shared_expert(mixed_td, &normed_td, &experts, shared_expert.as_ref())?
            }
        };
        Ok(self.after_feed_forward(&hidden_td, mlp_td, adapter))
    }

    /// The normed input of attention's products, from the residual stream, both [tokens, hidden].
    pub fn attention_input(&self, hidden_td: &Tensor, adapter: Adapter) -> Tensor {
        let norms = self.norms(adapter);
        norms.apply(norms.before_attention.as_ref(), hidden_td.shallow_clone())
    }

    /// Queries, keys and values of the heads of `projections`, rotated, from attention's normed input.
    pub fn heads(
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
        let q_thd = rope.rotate(norms.heads(norms.queries.as_ref(), &q, head_dim), rope_idx);
        let k_tkd = rope.rotate(norms.heads(norms.keys.as_ref(), &k, head_dim), rope_idx);
        (q_thd, k_tkd, v.unflatten(-1, [-1, head_dim]))
    }

    /// Attention over all packed tokens for some heads: queries [tokens, heads, head_dim], keys and values
    /// [tokens, kv_heads, head_dim], to [tokens, heads, head_dim]. Query heads must come with their key
    /// heads.
    pub fn attend(&self, q_thd: &Tensor, k_tkd: &Tensor, v_tkd: &Tensor, context: &LayerContext) -> Tensor {
        if let Some(segments) = &context.segments {
            let AttentionScores { scale, window, .. } = self.scores();
            return rlt_torch::packed_attention(q_thd, k_tkd, v_tkd, segments, scale, window);
        }
        let segments = Segments { cu_seqlens: &context.cu_seqlens, prefixes: &context.prefixes };
        rlt_torch::varlen_attention(q_thd, k_tkd, v_tkd, segments, self.scores())
    }

    /// Attention's output projected to [tokens, hidden].
    pub fn attention_output<P: Projections>(
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
    /// hidden], from the residual stream before attention and the projected output of attention.
    pub fn after_attention(
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

    /// Computes the feed-forward block, [tokens, hidden] to [tokens, hidden].
    pub fn feed_forward<D: DenseProducts>(&self, normed_td: &Tensor, block: &D) -> Result<Tensor, D::Error> {
        let (gate, up) = block.gate_up(normed_td);
        let activated = ops::gated_activation(&gate, &up, self.shape.activation);
        block.down(&activated)
    }

    /// Routes tokens to `experts`, and passes the routes to the observer.
    pub fn route(&self, normed_td: &Tensor, experts: &impl ExpertProducts) -> RoutedTokens {
        let routes = experts.mixture().route(&experts.scores(normed_td), experts.choice_bias());
        experts.observe(&routes);
        routes
    }

    /// The outputs of the local experts, those of `shard`, for their sorted `rows`: `[m, d]` to `[m, d]`.
    /// Without rows, or in a layer without experts, returns a copy of the input.
    pub fn experts_of_rows(
        &self,
        x_md: &Tensor,
        rows: &ExpertRows,
        shard: AxisPlace,
        adapter: Adapter,
    ) -> Tensor {
        match self.experts() {
            Some(weights) if x_md.size()[0] > 0 => {
                weights.of_rows(x_md, rows, shard, self.activation(), adapter)
            }
            // Kernels need at least one row. The product has a graph, through which gradients are exchanged.
            _ => x_md * 1.0,
        }
    }

    /// Adds the output of the shared expert to that of the chosen experts.
    pub fn add_shared_expert<E: ExpertProducts>(
        &self,
        mixed_td: Tensor,
        normed_td: &Tensor,
        experts: &E,
        shared: Option<&impl DenseProducts<Error = E::Error>>,
    ) -> Result<Tensor, E::Error> {
        let Some(block) = shared else { return Ok(mixed_td) };
        let block_td = self.feed_forward(normed_td, block)?;
        Ok(match experts.shared_gate(normed_td) {
            Some(gate_t1) => mixed_td + gate_t1.sigmoid() * block_td,
            None => mixed_td + block_td,
        })
    }

    /// The layer's output, from the residual stream and the output of the feed-forward block.
    pub fn after_feed_forward(&self, hidden_td: &Tensor, mlp_td: Tensor, adapter: Adapter) -> Tensor {
        let norms = self.norms(adapter);
        self.add(hidden_td, norms.apply(norms.after_mlp.as_ref(), mlp_td))
    }

    /// Adds the features of images that belong after this layer to its output.
    pub fn with_features(&self, output_td: Tensor, context: &LayerContext) -> Tensor {
        match &context.features {
            Some(features) => features.added_after(self.shape.layer_idx, output_td),
            None => output_td,
        }
    }

    /// Adds a block's output to the residual stream.
    fn add(&self, hidden_td: &Tensor, block_td: Tensor) -> Tensor {
        if self.shape.residual_scale == 1.0 {
            return hidden_td + block_td;
        }
        hidden_td + block_td * self.shape.residual_scale
    }
}
