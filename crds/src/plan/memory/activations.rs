//! The activations of a pass: which tensors of a decoder layer are alive, per token.
//!
//! The layer is the one of the trainer's `model/layer.rs`, of fused kernels on CPUs and GPUs: an RMS norm
//! keeps its input and a factor of each row, the gated activation gate and up.
//!
//! ```text
//! x -> norm -> q, k, v -> rope -> attention -> output -> + x -> norm -> gate, up -> gated -> down -> +
//! ```

use super::{FP32, MemoryTerm, term};
use crate::plan::HEAD_CHUNK_TOKENS;
use crate::plan::model_config::{ModelConfig, QkNorm};

/// Tensors of a feed-forward block that its backward pass needs: gate, up and their product.
const NUM_GATED: u64 = 3;

/// A model's activations in a precision.
#[derive(Clone, Copy, Debug)]
pub(super) struct Activations<'a> {
    pub(super) model: &'a ModelConfig,
    /// Bytes of a number in the compute precision.
    pub(super) width: u64,
    /// Inner values of the adapters of one token, over all layers.
    pub(super) adapter_width: u64,
    /// Numbers of a weight whose rows DoRA's norms are taken of: one projection at a time, in fp32.
    pub(super) normed_weight: u64,
    /// Ranks that share the tokens of a pass.
    pub(super) sp: u32,
    /// Numbers of one layer that are cast to the compute precision before it computes with them.
    pub(super) cast_of_layer: u64,
    /// Whether the head is cast, too.
    pub(super) casts_head: bool,
    /// Elements of the largest tensor of a layer that is trained.
    pub(super) largest_trained: u64,
}

impl Activations<'_> {
    fn sizes(&self) -> (u64, u64, u64, u64) {
        let model = self.model;
        let (hidden, feed_forward) = (model.hidden_size as u64, model.active_width() as u64);
        let heads = |num_heads: usize| (num_heads * model.head_dim) as u64;
        (hidden, feed_forward, heads(model.num_heads), heads(model.num_kv_heads))
    }

    /// Inputs of attention for each token of a rank: q + 2k, with at least as many key heads as ranks. Ranks
    /// of a sequence-parallel group exchange them; 0 without sequence parallelism.
    fn exchanged(&self) -> u64 {
        if self.sp == 1 {
            return 0;
        }
        let (_, _, queries, _) = self.sizes();
        queries + 2 * self.exchanged_keys()
    }

    /// The width of the key heads in attention, copies for several ranks included.
    fn exchanged_keys(&self) -> u64 {
        (self.model.num_kv_heads as u64).max(self.sp.into()) * self.model.head_dim as u64
    }

    fn num_layers(&self) -> u64 {
        self.model.num_layers as u64
    }

    /// Norms of the residual stream: of one before a block its output is kept, which the block's products
    /// read; of one behind a block its input. Where both blocks read the same norm, each has its output.
    fn num_norms(&self) -> u64 {
        let (before, behind) = self.model.block_norms.counts();
        before + behind + u64::from(self.model.parallel_blocks)
    }

    /// Activations of one layer for its backward pass, without its input: both normed inputs, the middle of
    /// the residual stream, rotated q and k, v, the attention's output, gate, up and their product (b (3h +
    /// 2q + 2k + 3f)); q and k before their norms where they have some; in fp32 the attention's log-sum of
    /// each head and a factor for each norm. Where tokens are shared, the attention's output twice: some
    /// heads of all tokens, and all heads of some.
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

    /// Activations of latent attention for each token: both latents before and behind their norms, keys and
    /// values as they are expanded, and queries before they are turned in part.
    fn latents(&self, queries: u64) -> u64 {
        self.model.latent.as_ref().map_or(0, |latent| {
            let compressed = latent.query_rank.unwrap_or(0) + latent.cached();
            let expanded = self.model.num_heads * (latent.plain_dim + latent.value_dim);
            queries + (2 * compressed + expanded) as u64
        })
    }

    /// Activations of experts for each token: its hidden state and their output once for each expert that
    /// computes it, and the probabilities of all.
    fn expert_rows(&self, hidden: u64) -> u64 {
        let experts = self.model.experts.as_ref();
        experts.map_or(0, |experts| {
            2 * experts.num_experts_per_token as u64 * hidden + 2 * experts.num_experts as u64
        })
    }

    /// The inputs of norms of q and k, where the model has some: no other operator keeps them.
    fn head_norm_inputs(&self, inputs: u64) -> u64 {
        if self.model.qk_norm == QkNorm::None { 0 } else { inputs }
    }

    /// Activations of all layers: their inputs (b L h) and, without checkpointing, everything in them; and
    /// around the final norm its input and output (b 2h). Of offloaded inputs, that of the layer that
    /// computes and the next one's.
    pub(super) fn kept_bytes_per_token(&self, checkpointing: bool, inputs_offloaded: bool) -> u64 {
        let (hidden, ..) = self.sizes();
        let inside = self.num_layers() * self.kept_in_layer(checkpointing);
        let num_inputs = if inputs_offloaded { self.num_layers().min(2) } else { self.num_layers() };
        (num_inputs + 2) * self.width * hidden + inside
    }

    /// Activations of one layer besides its input.
    pub(super) fn kept_in_layer(&self, checkpointing: bool) -> u64 {
        if checkpointing { 0 } else { self.layer_bytes_per_token() }
    }

    /// The inputs of all layers (b L h).
    pub(super) fn input_bytes_per_token(&self) -> u64 {
        let (hidden, ..) = self.sizes();
        self.num_layers() * self.width * hidden
    }

    /// One layer computed again, with checkpointing.
    pub(super) fn recomputed_bytes_per_token(&self, checkpointing: bool) -> u64 {
        if checkpointing { self.layer_bytes_per_token() } else { 0 }
    }

    /// Gradients that are alive in the backward pass of one feed-forward block: of the residual stream, of
    /// gate, up and their product, and of the block's input (b (2h + 3f)); or of an all-to-all beside the
    /// residual stream's: by heads, concatenated, sent and received.
    pub(super) fn gradient_bytes_per_token(&self) -> u64 {
        let (hidden, feed_forward, ..) = self.sizes();
        self.width
            * (2 * hidden + 3 * feed_forward + self.expert_rows(hidden)).max(hidden + 4 * self.exchanged())
    }

    /// The widest moment of a layer without gradients: the residual stream and the normed input beside either
    /// gate, up, their product and the output (b (3h + 3f)), or q, k, v, rotated q and k and the attention's
    /// output (b (2h + 3q + 3k)), and what is exchanged as it is put together, sent and received.
    pub(super) fn inference_bytes_per_token(&self) -> u64 {
        let (hidden, feed_forward, queries, keys) = self.sizes();
        let feed_forward_block = 3 * hidden + NUM_GATED * feed_forward + self.expert_rows(hidden);
        let attention_block =
            2 * hidden + 3 * queries + 3 * keys + 3 * self.exchanged() + self.latents(queries);
        self.width * feed_forward_block.max(attention_block)
    }

    /// The loss head over `predicted` positions: `copies` of their hidden states (b c h each; the second is
    /// the gradient), the logits of one chunk (b chunk v) and, where the compute precision is not fp32,
    /// `casts` tensors of the head's shape in it (b v h): the weight itself, and its gradient before it is
    /// added.
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

    /// The largest gradient of a layer before it is added: in the compute precision, and cast to fp32.
    pub(super) fn gradient_temporaries(&self) -> u64 {
        let bytes = if self.width == FP32 { FP32 } else { self.width + FP32 };
        bytes * self.largest_trained
    }

    /// The weight with its adapter that DoRA's norms are taken of.
    pub(super) fn norm_temporaries(&self) -> MemoryTerm {
        term("DoRA norms", FP32 * self.normed_weight)
    }

    /// The bytes of one layer that are cast to the compute dtype.
    pub(super) fn cast_bytes_of_one_layer(&self) -> u64 {
        self.width * self.cast_of_layer
    }

    /// The casts that the graph keeps for its backward pass: of all layers, or of one with checkpointing.
    pub(super) fn kept_cast_bytes(&self, checkpointing: bool) -> u64 {
        let num_layers = if checkpointing { 1 } else { self.num_layers() };
        num_layers * self.cast_bytes_of_one_layer()
    }
}
