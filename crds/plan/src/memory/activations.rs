//! Activations of a pass: the tensors of a decoder layer that are alive, in bytes per token.
//!
//! Models the layer of `trainer/decoder/src/layer.rs` with fused kernels on CPUs and GPUs: an RMS norm keeps
//! its input and one factor per row, the gated activation keeps gate and up.
//!
//! ```text
//! x -> norm -> q, k, v -> rope -> attention -> output -> + x -> norm -> gate, up -> gated -> down -> +
//! ```

use rlt_models::{ModelConfig, QkNorm};

use super::{FP32, MemoryTerm, term};
use crate::HEAD_CHUNK_TOKENS;

/// Number of feed-forward tensors that the backward pass needs: gate, up and their product.
const NUM_GATED: u64 = 3;

/// Sizes from which the activations of a model are computed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Activations<'a> {
    pub(super) model: &'a ModelConfig,
    /// Bytes of an element in the compute dtype.
    pub(super) width: u64,
    /// Inner values of a token in all adapters, over all layers.
    pub(super) adapter_width: u64,
    /// Elements of the weight whose row norms DoRA takes: one projection at a time, in fp32.
    pub(super) normed_weight: u64,
    /// Sequence-parallel degree of the pass.
    pub(super) sp: u32,
    /// Elements of one layer that are cast to the compute dtype before use.
    pub(super) cast_of_layer: u64,
    /// Whether the head is cast to the compute dtype too.
    pub(super) casts_head: bool,
    /// Elements of the largest trained tensor of a layer.
    pub(super) largest_trained: u64,
}

impl Activations<'_> {
    fn sizes(&self) -> (u64, u64, u64, u64) {
        let model = self.model;
        let (hidden, feed_forward) = (model.hidden_size as u64, model.active_width() as u64);
        let heads = |num_heads: usize| (num_heads * model.head_dim) as u64;
        (hidden, feed_forward, heads(model.num_heads), heads(model.num_kv_heads))
    }

    /// Elements per token that a sequence-parallel group exchanges before attention: q + 2k, with at least as
    /// many key heads as ranks; 0 without sequence parallelism.
    fn exchanged(&self) -> u64 {
        if self.sp == 1 {
            return 0;
        }
        let (_, _, queries, _) = self.sizes();
        queries + 2 * self.exchanged_keys()
    }

    /// Width of all key heads in attention, including copies where there are fewer key heads than ranks.
    fn exchanged_keys(&self) -> u64 {
        (self.model.num_kv_heads as u64).max(self.sp.into()) * self.model.head_dim as u64
    }

    fn num_layers(&self) -> u64 {
        self.model.num_layers as u64
    }

    /// Number of norm tensors of the residual stream that the backward pass needs: the output of a norm
    /// before a block, which the block's products read, and the input of a norm after a block. Parallel
    /// blocks that read the same norm each keep its output.
    fn num_norms(&self) -> u64 {
        let (before, behind) = self.model.block_norms.counts();
        before + behind + u64::from(self.model.parallel_blocks)
    }

    /// Bytes per token of one layer that the backward pass needs, without the layer's input: both normed
    /// inputs, the residual stream between the blocks, rotated q and k, v, the attention output, gate, up and
    /// their product (b (3h + 2q + 2k + 3f)); q and k before their norms where the model has such norms; in
    /// fp32 the attention's log-sum-exp of each head and a factor for each norm. Under sequence parallelism
    /// the attention output counts twice: as some heads of all tokens, and as all heads of some tokens.
    fn layer_bytes_per_token(&self) -> u64 {
        let (hidden, feed_forward, queries, keys) = self.sizes();
        let outputs = if self.sp == 1 { queries } else { 2 * queries };
        let attention = queries + 2 * self.exchanged_keys() + outputs;
        let num_norms = self.num_norms();
        let numbers = num_norms * hidden + attention + NUM_GATED * feed_forward + self.expert_rows(hidden);
        let numbers = numbers + self.latents(queries);
        let statistics = self.model.num_heads as u64 + num_norms;
        let adapters = self.adapter_width / self.num_layers().max(1);
        let middle = hidden + self.head_norm_inputs(queries + keys);
        self.width * (numbers + adapters + middle) + FP32 * statistics
    }

    /// Elements per token of latent attention: both latents before and after their norms, the expanded keys
    /// and values, and queries before the rotary embedding.
    fn latents(&self, queries: u64) -> u64 {
        self.model.latent.as_ref().map_or(0, |latent| {
            let compressed = latent.query_rank.unwrap_or(0) + latent.kv_cache_width();
            let expanded = self.model.num_heads * (latent.nope_dim + latent.value_dim);
            queries + (2 * compressed + expanded) as u64
        })
    }

    /// Elements per token of the experts: its hidden state and their output once for each expert that
    /// computes it, and the router's probabilities of all experts.
    fn expert_rows(&self, hidden: u64) -> u64 {
        let experts = self.model.experts.as_ref();
        experts.map_or(0, |experts| {
            2 * experts.num_experts_per_token as u64 * hidden + 2 * experts.num_experts as u64
        })
    }

    /// Elements per token of the inputs of q and k norms, which no other operator keeps; 0 without such
    /// norms.
    fn head_norm_inputs(&self, inputs: u64) -> u64 {
        if self.model.qk_norm == QkNorm::None { 0 } else { inputs }
    }

    /// Bytes per token that a pass keeps for its backward pass: the input of each layer (b L h), without
    /// checkpointing all activations inside the layers, and input and output of the final norm (b 2h). Of
    /// offloaded inputs only two are on the device: of the computing layer and of the next one.
    pub(super) fn kept_bytes_per_token(&self, checkpointing: bool, inputs_offloaded: bool) -> u64 {
        let (hidden, ..) = self.sizes();
        let inside = self.num_layers() * self.kept_in_layer(checkpointing);
        let num_inputs = if inputs_offloaded { self.num_layers().min(2) } else { self.num_layers() };
        (num_inputs + 2) * self.width * hidden + inside
    }

    /// Bytes per token that one layer keeps besides its input; 0 with checkpointing.
    pub(super) fn kept_in_layer(&self, checkpointing: bool) -> u64 {
        if checkpointing { 0 } else { self.layer_bytes_per_token() }
    }

    /// Bytes per token of the inputs of all layers (b L h).
    pub(super) fn input_bytes_per_token(&self) -> u64 {
        let (hidden, ..) = self.sizes();
        self.num_layers() * self.width * hidden
    }

    /// Bytes per token of the one layer that checkpointing recomputes; 0 without checkpointing.
    pub(super) fn recomputed_bytes_per_token(&self, checkpointing: bool) -> u64 {
        if checkpointing { self.layer_bytes_per_token() } else { 0 }
    }

    /// Bytes per token of gradients alive in the backward pass of one block, the larger of two moments. In
    /// the feed-forward block: of the residual stream, of gate, up and their product, and of the block's
    /// input (b (2h + 3f)). In the all-to-all of attention: of the residual stream and of the exchanged
    /// tensors by heads, concatenated, sent and received.
    pub(super) fn gradient_bytes_per_token(&self) -> u64 {
        let (hidden, feed_forward, ..) = self.sizes();
        self.width
            * (2 * hidden + 3 * feed_forward + self.expert_rows(hidden)).max(hidden + 4 * self.exchanged())
    }

    /// Bytes per token at the widest moment of a layer without gradients: the residual stream and the normed
    /// input with either gate, up, their product and the output (b (3h + 3f)), or q, k, v, rotated q and k
    /// and the attention output (b (2h + 3q + 3k)) plus the exchanged tensors as concatenated, sent and
    /// received.
    pub(super) fn inference_bytes_per_token(&self) -> u64 {
        let (hidden, feed_forward, queries, keys) = self.sizes();
        let feed_forward_block = 3 * hidden + NUM_GATED * feed_forward + self.expert_rows(hidden);
        let attention_block =
            2 * hidden + 3 * queries + 3 * keys + 3 * self.exchanged() + self.latents(queries);
        self.width * feed_forward_block.max(attention_block)
    }

    /// Memory of the loss head over `predicted` positions: `copies` of their hidden states (b c h each; the
    /// second is the gradient), the logits of one chunk (b chunk v) and, where the compute dtype is not fp32,
    /// `casts` tensors of the head's shape in it (b v h): the weight itself, and its gradient before it is
    /// accumulated.
    pub(super) fn head(&self, predicted: u64, copies: u64, casts: u64) -> Vec<MemoryTerm> {
        let (hidden, rows_of_head) = (self.model.hidden_size as u64, self.model.head_rows() as u64);
        let rows = u64::from(HEAD_CHUNK_TOKENS).min(predicted);
        let casts = if self.width == FP32 { 0 } else { casts - u64::from(!self.casts_head) };
        vec![
            term("loss head inputs", self.width * copies * predicted * hidden),
            term("loss head chunk", self.width * rows * rows_of_head),
            term("loss head casts", self.width * casts * rows_of_head * hidden),
        ]
    }

    /// Bytes of the largest weight gradient of a layer before it is accumulated: in the compute dtype, and
    /// cast to fp32.
    pub(super) fn gradient_temporaries(&self) -> u64 {
        let bytes = if self.width == FP32 { FP32 } else { self.width + FP32 };
        bytes * self.largest_trained
    }

    /// The fp32 weight with its adapter merged, of which DoRA takes row norms.
    pub(super) fn norm_temporaries(&self) -> MemoryTerm {
        term("DoRA norms", FP32 * self.normed_weight)
    }

    /// Bytes of one layer's weights that are cast to the compute dtype.
    pub(super) fn cast_bytes_of_one_layer(&self) -> u64 {
        self.width * self.cast_of_layer
    }

    /// Bytes of cast weights that the autograd graph keeps for the backward pass: of all layers, or of one
    /// with checkpointing.
    pub(super) fn kept_cast_bytes(&self, checkpointing: bool) -> u64 {
        let num_layers = if checkpointing { 1 } else { self.num_layers() };
        num_layers * self.cast_bytes_of_one_layer()
    }
}
