//! Tensor-parallel training of a layer: the parts between which ranks exchange sums, each from this rank's
//! shard of the weights, and the embedding likewise:
//!
//! ```text
//! attention_input         the norm before attention                     full on every rank
//! queries_keys_values     q, k, v of local heads, rotated               of the normed input
//! attention_part          o                                             a summand of [t, d]
//! after_attention_sum     residual sum, norm before the block           full on every rank
//! feed_forward_part       gate, up, down of local width                 a summand of [t, d]
//! after_feed_forward_sum  residual sum                                  full on every rank
//! ```
//! Each part is an autograd graph of its own. Together they compute [`DecoderLayer::forward`]; the exchange
//! is in `actor::layer_schedule::tensor`, the shards of weights in [`super::tp_cuts`].
//!
//! Shapes: t tokens, d hidden width, h query heads of this rank, w head width.

use tch::Tensor;

use super::decoder::Decoder;
use super::layer::{DecoderLayer, LayerContext, QueriesKeysValues};
use super::own_projections::OwnProjections;
use super::projection::Adapter;
use super::tp_cuts::ParameterCuts;

impl DecoderLayer {
    /// The normed input of attention's products, from the residual stream, both `[t, d]`.
    pub(crate) fn attention_input(&self, hidden_td: &Tensor, context: &LayerContext) -> Tensor {
        self.normed_input(hidden_td, context.adapter)
    }

    /// Queries, keys and values of this rank's heads, rotated.
    pub(crate) fn queries_keys_values(
        &self,
        normed_td: &Tensor,
        context: &LayerContext,
        cuts: &ParameterCuts,
    ) -> QueriesKeysValues {
        self.project_normed(normed_td, &context.rope, &self.own_part(context, cuts))
    }

    /// This rank's summand of attention's output, `[t, d]`, from the attention of its heads, `[t, h, w]`.
    pub(crate) fn attention_part(
        &self,
        attended_thw: &Tensor,
        context: &LayerContext,
        cuts: &ParameterCuts,
    ) -> Tensor {
        let Ok(part_td) = self.attention_output(attended_thw, &self.own_part(context, cuts));
        part_td
    }

    /// The residual stream after attention, and the input of the feed-forward block, both `[t, d]`, from
    /// attention's summed output.
    pub(crate) fn after_attention_sum(
        &self,
        hidden_td: &Tensor,
        attention_td: Tensor,
        context: &LayerContext,
    ) -> (Tensor, Tensor) {
        self.after_attention_output(hidden_td, attention_td, context.adapter)
    }

    /// This rank's summand of the feed-forward block's output, `[t, d]`.
    pub(crate) fn feed_forward_part(
        &self,
        normed_td: &Tensor,
        context: &LayerContext,
        cuts: &ParameterCuts,
    ) -> Tensor {
        let Ok(part_td) = self.feed_forward(normed_td, &self.own_part(context, cuts).block());
        part_td
    }

    /// The layer's output, `[t, d]`, from the summed output of the feed-forward block.
    pub(crate) fn after_feed_forward_sum(
        &self,
        hidden_td: &Tensor,
        mlp_td: Tensor,
        context: &LayerContext,
    ) -> Tensor {
        self.with_features(self.after_mlp(hidden_td, mlp_td, context.adapter), context)
    }

    fn own_part<'a>(&'a self, context: &'a LayerContext, cuts: &'a ParameterCuts) -> OwnProjections<'a> {
        OwnProjections { layer: self, context, cuts: Some(cuts) }
    }
}

impl Decoder {
    /// This rank's summand of the embeddings of `tokens_t`, `[t, d]`: zeros for tokens of other ranks.
    pub(crate) fn embed_part(&self, tokens_t: &Tensor, adapter: Adapter, cuts: &ParameterCuts) -> Tensor {
        let (own_t, is_other_t) = cuts.own_tokens(tokens_t);
        let weight_vd = self.embedding_weight(adapter);
        let hidden_td = Tensor::embedding(weight_vd, &own_t, -1, false, false).to_kind(self.compute_kind());
        let hidden_td = hidden_td.masked_fill(&is_other_t.unsqueeze(1), 0.0);
        if self.config.embedding_scale == 1.0 { hidden_td } else { hidden_td * self.embedding_scale() }
    }
}

impl ParameterCuts {
    /// Rows of `tokens_t` in this rank's shard of the embedding, i64 `[t]`, and whether another rank has the
    /// token, whose row is then given as 0.
    pub(crate) fn own_tokens(&self, tokens_t: &Tensor) -> (Tensor, Tensor) {
        let own = self.tokens();
        let is_other_t = tokens_t.lt(own.start as i64).logical_or(&tokens_t.ge(own.end as i64));
        ((tokens_t - own.start as i64).masked_fill(&is_other_t, 0), is_other_t)
    }
}
