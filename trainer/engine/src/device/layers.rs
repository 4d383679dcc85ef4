//! The decoder on a GPU, as kernels that write into preallocated buffers. A layer takes nine launches for any
//! number of rows, with experts thirteen, and four more with a shared expert.
//!
//! ```text
//! norm with residual, q k v, rope and cache, attention, output, norm with residual, gate and up, gate, down
//! ```
//! A norm after a block is one more launch, and norms over all heads of queries and keys are six more. An
//! unmerged adapter is two more for each of the four products, and a quantized base one more for more than a
//! few rows. Tensor parallelism adds two all-reduces on the same stream, after output and down.
//!
//! Rows are the tokens of a decode, one per sequence, which read the paged cache, or the tokens of a prefill,
//! whose keys and values are gathered from the cache once for all rows.

use rlt_decoder::{DecoderLayer, FeedForward, ImageEmbeddings, Norm, activation_of};
use rlt_models::{ModelConfig, QkNorm};
use rlt_torch::cuda::{EmbedGather, Kernels, PagedDecodeAttention, RmsNormResidual, RopeAndWriteKv, SwiGlu};
use rlt_torch::{Activation, CachedSegments, Error, PackedLinear, cached_attention};
use tch::{Device, Kind, TchError, Tensor};

use super::CudaError;
use super::experts::{ExpertBuffers, MoeLaunch};
use super::splits::Splits;
use super::stream_tensor_parallel::StreamTensorParallel;
use crate::kv_cache::KvCache;
use crate::product::{DeviceProduct, Workspace};
use crate::weights::{PackedBlock, RolloutWeights};

/// Norm weights of a layer in the compute dtype; [`rlt_decoder`] documents their positions.
#[derive(Debug)]
struct Norms {
    before_attention: Option<Tensor>,
    after_attention: Option<Tensor>,
    before_mlp: Option<Tensor>,
    after_mlp: Option<Tensor>,
    /// Norm weights of queries and of keys.
    heads: Option<[Tensor; 2]>,
}

/// Copies `source` into the memory of `target`. Returns an error where tch's `copy_` would panic, because
/// decoding continues without graphs after a capture has failed.
pub(super) fn copy_into(target: &Tensor, source: &Tensor) -> Result<(), Error> {
    target.shallow_clone().f_copy_(source).map_err(failed)
}

/// Converts an error of one of libtorch's operators in a pass.
fn failed(source: TchError) -> Error {
    Error::Libtorch { act: "a pass of the decoder", message: source.to_string() }
}

/// Table of a rotary embedding: angle per position of each pair, f32, and the factor of cosines and sines.
type RotaryTable = (Tensor, f64);

/// Norms, embedding and rotary frequencies in the form that kernels take.
#[derive(Debug)]
pub(super) struct Model<'a> {
    pub(super) kernels: Kernels,
    pub(super) weights: &'a RolloutWeights,
    /// Tensor-parallel group, whose ranks hold the shards of the weights; `None` without tensor parallelism.
    pub(super) peers: Option<StreamTensorParallel>,
    embedding: Tensor,
    embedding_scale: f64,
    activation: Activation,
    norms: Vec<Norms>,
    final_norm: Tensor,
    /// Angles and factor of each rotary embedding of the model.
    rotary_tables: Vec<RotaryTable>,
    /// Angles of zero, for layers without a rotary embedding.
    no_rotary: RotaryTable,
    /// Index of the position axis, 0 to 2, that rotates each pair of a head, i32; `None` if positions have
    /// one axis.
    axes: Option<Tensor>,
    multiprocessors: usize,
    /// Buffer for dequantized weights; `None` if no weight is quantized.
    dequantized: Option<Tensor>,
}

/// Inputs that describe the rows of a pass, all on the device.
pub(super) struct ModelInput {
    /// Token ids, i32 `[rows]`.
    pub(super) tokens: Tensor,
    /// Positions, i32 `[rows]`, or `[3, rows]` if positions have three axes.
    pub(super) positions: Tensor,
    /// Features of images among the rows; `None` without images.
    pub(super) images: Option<ImageEmbeddings>,
    /// Whether positions have three axes.
    pub(super) has_axes: bool,
    /// Cache slots that the rows' keys and values are written to, i32 `[rows]`.
    pub(super) slots: Tensor,
    pub(super) attention: AttentionInputs,
    /// Outputs for digests of the routers' choices, i32 `[rows]` for each layer with experts; empty if they
    /// are not recorded.
    pub(super) routes: Vec<Tensor>,
}

/// The cached keys and values to which the rows of a pass attend.
pub(super) enum AttentionInputs {
    /// Each row attends to its own sequence, and a sequence has one row.
    Paged {
        /// Number of tokens to which each row attends, i32 `[rows]`.
        context_lens: Tensor,
        /// Cache blocks of each row's sequence, i32 `[rows, max_blocks]`.
        block_tables: Tensor,
    },
    /// Many rows attend to the same sequence.
    Gathered(CachedSegments),
}

/// Output buffers of the layers for a number of rows.
pub(super) struct ActivationBuffers {
    residual: Tensor,
    added: Tensor,
    normed: Tensor,
    qkv: Tensor,
    queries: Tensor,
    /// Buffer for norms over all heads; `None` if the model has none.
    keys: Option<Tensor>,
    gate_up: Tensor,
    activated: Tensor,
    /// Buffers of products with quantized weights or unmerged adapters.
    scratch: Workspace,
    experts: Option<ExpertBuffers>,
    /// Outputs and workspace of paged attention; `None` for a prefill.
    paged: Option<Paged>,
}

struct Paged {
    attended: Tensor,
    /// Workspace that suffices for any number of rows.
    workspace: Tensor,
    splits: Splits,
}

impl<'a> Model<'a> {
    /// Casts the norms to the compute dtype, and pads those of heads if heads are padded.
    pub(super) fn new(
        kernels: Kernels,
        weights: &'a RolloutWeights,
        peers: Option<StreamTensorParallel>,
        multiprocessors: usize,
    ) -> Self {
        let unpacked = &weights.unpacked;
        let kind = unpacked.compute_kind();
        let cast = |tensor: &Tensor| tensor.detach().to_kind(kind).contiguous();
        let layout = &weights.head_layout;
        let norms = unpacked.layers().iter().map(|layer| Norms::of(layer, weights, cast));
        let rotary_tables = unpacked.ropes.frequencies().iter();
        let rotary_tables: Vec<RotaryTable> =
            rotary_tables.map(|of| (layout.pairs(&of.per_pair), of.attention_factor)).collect();
        let nothing = Tensor::zeros([layout.padded_width as i64 / 2], (Kind::Float, unpacked.device()));
        let has_all = unpacked.config.tie_word_embeddings && peers.is_none();
        let tied = weights.head().plain_weight().filter(|_| has_all);
        Self {
            kernels,
            weights,
            peers,
            embedding: tied.map_or_else(|| cast(&unpacked.embedding), Tensor::shallow_clone),
            embedding_scale: unpacked.embedding_scale(),
            activation: activation_of(unpacked.config.hidden_activation),
            norms: norms.collect(),
            final_norm: cast(&times(
                &unpacked.norm,
                unpacked.config.norm_offset,
                unpacked.config.logit_scale,
            )),
            rotary_tables,
            no_rotary: (nothing, 1.0),
            axes: unpacked.ropes.axes().map(|axes| layout.pairs(&axes.to_kind(Kind::Int))),
            multiprocessors,
            dequantized: weights
                .largest_beside(DeviceProduct::dequantized_numbers)
                .map(|numbers| Tensor::empty([numbers as i64], (kind, unpacked.device()))),
        }
    }

    fn config(&self) -> &ModelConfig {
        &self.weights.unpacked.config
    }

    /// Buffers for the decode of at most `rows` rows.
    pub(super) fn decode_buffers(&self, rows: usize) -> ActivationBuffers {
        let config = &self.weights.shard;
        let splits = Splits {
            heads: config.num_heads,
            kv_heads: config.num_kv_heads,
            head_dim: config.head_dim,
            multiprocessors: self.multiprocessors,
        };
        let num_bytes = splits.workspace_bytes(rows);
        let buffers = self.buffers(rows);
        let attended = buffers.queries.empty_like();
        let workspace = Tensor::zeros([num_bytes as i64], (Kind::Uint8, self.kernels.device()));
        ActivationBuffers { paged: Some(Paged { attended, workspace, splits }), ..buffers }
    }

    /// Buffers for a prefill of `rows` rows.
    pub(super) fn buffers(&self, rows: usize) -> ActivationBuffers {
        let (config, unpacked) = (&self.weights.shard, &self.weights.unpacked);
        let options = (unpacked.compute_kind(), self.kernels.device());
        let (heads, kv_heads, head_dim) = (config.num_heads, config.num_kv_heads, config.head_dim);
        let has_block = (0..config.num_layers).any(|layer_idx| config.experts_of(layer_idx).is_none());
        let dense_width = if has_block { config.intermediate_size } else { 0 };
        let empty = |width: usize| Tensor::empty([rows as i64, width as i64], options);
        ActivationBuffers {
            residual: empty(config.hidden_size),
            added: empty(config.hidden_size),
            normed: empty(config.hidden_size),
            qkv: empty((heads + 2 * kv_heads) * head_dim),
            queries: Tensor::empty([rows as i64, heads as i64, head_dim as i64], options),
            keys: (unpacked.config.qk_norm == QkNorm::AllHeads).then(|| empty(kv_heads * head_dim)),
            gate_up: empty(2 * dense_width),
            activated: empty(dense_width),
            scratch: self.scratch(rows),
            experts: ExpertBuffers::new(rows, config, options),
            paged: None,
        }
    }

    /// Makes the scratch memory of products with quantized weights or unmerged adapters.
    fn scratch(&self, rows: usize) -> Workspace {
        let (layout, unpacked) = (&self.weights.head_layout, &self.weights.unpacked);
        let options = (unpacked.compute_kind(), self.kernels.device());
        let empty = |width: usize| Tensor::empty([rows as i64, width as i64], options);
        let is_beside = self.weights.largest_beside(|_| 1).is_some();
        let is_padded = is_beside && layout.width != layout.padded_width;
        Workspace {
            numbers: self.dequantized.as_ref().map(Tensor::shallow_clone),
            inner: self.weights.largest_beside(DeviceProduct::num_ranks).map(empty),
            heads: is_padded.then(|| empty(self.weights.shard.num_heads * layout.width)),
        }
    }

    /// Runs all layers and writes the keys and values of the rows to the cache. Returns the hidden states
    /// after the final norm.
    pub(super) fn run<'b>(
        &self,
        inputs: &ModelInput,
        cache: &mut KvCache,
        buffers: &'b ActivationBuffers,
    ) -> Result<&'b Tensor, CudaError> {
        let kernels = &self.kernels;
        EmbedGather {
            tokens: &inputs.tokens,
            embedding: &self.embedding,
            scale: self.embedding_scale,
            out: &buffers.residual,
        }
        .launch(kernels)?;
        if let Some(images) = &inputs.images {
            let placed = images.in_place_of(&buffers.residual);
            copy_into(&buffers.residual, &placed)?;
        }
        for layer_idx in 0..self.norms.len() {
            self.layer(layer_idx, inputs, cache, buffers)?;
            if let Some(images) = &inputs.images {
                // Features that belong after a layer are added to the output of its last block.
                let added = images.added_after(layer_idx, buffers.added.shallow_clone());
                copy_into(&buffers.added, &added)?;
            }
        }
        let added = (!self.norms.is_empty()).then_some(&buffers.added);
        self.norm(added, &self.final_norm, buffers)?;
        Ok(&buffers.normed)
    }

    /// Adds the output of the last block to the residual stream, and normalises the sum.
    fn norm(
        &self,
        added: Option<&Tensor>,
        weight: &Tensor,
        buffers: &ActivationBuffers,
    ) -> Result<(), Error> {
        let config = self.config();
        let (eps, offset) = (config.rms_norm_eps, config.norm_offset);
        let (residual, out) = (&buffers.residual, &buffers.normed);
        RmsNormResidual { x: added, residual, weight, eps, offset, out }.launch(&self.kernels)
    }

    fn layer(
        &self,
        layer_idx: usize,
        inputs: &ModelInput,
        cache: &mut KvCache,
        buffers: &ActivationBuffers,
    ) -> Result<(), CudaError> {
        let norms = &self.norms[layer_idx];
        let products = self.weights.products(layer_idx);
        let (kernels, scratch) = (&self.kernels, &buffers.scratch);
        let added = (layer_idx > 0).then_some(&buffers.added);
        let input = self.block_input(added, norms.before_attention.as_ref(), buffers)?;
        products.qkv.forward_into(input, &buffers.qkv, kernels, scratch)?;
        self.norm_over_heads(norms, buffers)?;
        let attended = self.attend(layer_idx, inputs, cache, buffers)?;
        products.output.forward_into(&attended.flatten(1, 2), &buffers.added, kernels, scratch)?;
        self.block_output(norms.after_attention.as_ref(), buffers)?;
        let input = self.block_input(Some(&buffers.added), norms.before_mlp.as_ref(), buffers)?;
        match (&products.feed_forward, &buffers.experts) {
            (FeedForward::Experts { experts, shared_expert }, Some(of_experts)) => {
                let activation = self.activation;
                let digests = inputs.routes.get(self.place_among_experts(layer_idx));
                MoeLaunch { kernels, activation, experts, block: shared_expert.as_ref(), scratch }.launch(
                    input,
                    of_experts,
                    digests,
                    &buffers.added,
                )?;
            }
            (FeedForward::Dense(block), _) => self.feed_forward(block, input, buffers)?,
            (FeedForward::Experts { .. }, None) => {
                let (expected, got) = ("buffers of experts".into(), "those of other layers".into());
                return Err(Error::Argument { act: "a mixture of experts", expected, got }.into());
            }
        }
        self.block_output(norms.after_mlp.as_ref(), buffers)
    }

    fn feed_forward(
        &self,
        block: &PackedBlock,
        input: &Tensor,
        buffers: &ActivationBuffers,
    ) -> Result<(), Error> {
        let (kernels, scratch) = (&self.kernels, &buffers.scratch);
        block.gate_up.forward_into(input, &buffers.gate_up, kernels, scratch)?;
        let (gate_up, out) = (&buffers.gate_up, &buffers.activated);
        SwiGlu { gate_up, activation: self.activation, out }.launch(kernels)?;
        block.down.forward_into(&buffers.activated, &buffers.added, kernels, scratch)
    }

    /// Number of layers with experts before this one.
    fn place_among_experts(&self, layer_idx: usize) -> usize {
        (0..layer_idx).filter(|before| self.config().experts_of(*before).is_some()).count()
    }

    /// Returns the input of a block: the residual stream plus the output of the previous block, after this
    /// block's norm if it has one.
    fn block_input<'b>(
        &self,
        added: Option<&Tensor>,
        norm: Option<&Tensor>,
        buffers: &'b ActivationBuffers,
    ) -> Result<&'b Tensor, Error> {
        if let Some(weight) = norm {
            self.norm(added, weight, buffers)?;
            return Ok(&buffers.normed);
        }
        if let Some(added) = added {
            let _ = buffers.residual.shallow_clone().f_add_(added).map_err(failed)?;
        }
        Ok(&buffers.residual)
    }

    /// Completes the output of a block: all-reduces it, and applies the norm after the block if there is one.
    fn block_output(&self, norm: Option<&Tensor>, buffers: &ActivationBuffers) -> Result<(), CudaError> {
        self.sum(&buffers.added)?;
        norm.map_or(Ok(()), |weight| {
            Ok(self.norm_in_place(&buffers.added, weight, self.config().rms_norm_eps)?)
        })
    }

    fn norm_in_place(&self, x: &Tensor, weight: &Tensor, eps: f64) -> Result<(), Error> {
        let offset = self.config().norm_offset;
        RmsNormResidual { x: None, residual: x, weight, eps, offset, out: x }.launch(&self.kernels)
    }

    /// Applies the norms of queries and keys over all heads, in the output of their product.
    fn norm_over_heads(&self, norms: &Norms, buffers: &ActivationBuffers) -> Result<(), Error> {
        let (Some([q_norm, k_norm]), Some(keys)) = (&norms.heads, &buffers.keys) else { return Ok(()) };
        let layout = &self.weights.head_layout;
        // Padded heads contain zeros, which the mean of the kernel includes.
        let eps = self.config().rms_norm_eps * layout.width as f64 / layout.padded_width as f64;
        let queries = buffers.queries.flatten(1, 2);
        let mut start = 0;
        for (heads, norm) in [(&queries, q_norm), (keys, k_norm)] {
            let width = heads.size()[1];
            let fused = buffers.qkv.narrow(1, start, width);
            copy_into(heads, &fused)?;
            self.norm_in_place(heads, norm, eps)?;
            copy_into(&fused, heads)?;
            start += width;
        }
        Ok(())
    }

    /// All-reduces `own` over the tensor-parallel group, in place.
    fn sum(&self, own: &Tensor) -> Result<(), CudaError> {
        self.peers.as_ref().map_or(Ok(()), |peers| Ok(peers.all_reduce(own)?))
    }

    fn attend(
        &self,
        layer_idx: usize,
        inputs: &ModelInput,
        cache: &mut KvCache,
        buffers: &ActivationBuffers,
    ) -> Result<Tensor, Error> {
        let unpacked = &self.weights.unpacked;
        let layer = &unpacked.layers()[layer_idx];
        let (scale, window) = (layer.attention_scale(), layer.window());
        let cache = cache.layer(layer_idx);
        let of_each_head = self.norms[layer_idx].heads.as_ref().filter(|_| buffers.keys.is_none());
        let qk_norms = of_each_head.map(|[q, k]| (q, k));
        let table = layer.rope_idx().and_then(|idx| self.rotary_tables.get(idx));
        let (inverse_frequencies, rope_factor) = table.unwrap_or(&self.no_rotary);
        RopeAndWriteKv {
            qkv: &buffers.qkv,
            inverse_frequencies,
            norm_width: unpacked.config.head_dim,
            rope_factor: *rope_factor,
            positions: &inputs.positions,
            axes: self.axes.as_ref().filter(|_| inputs.has_axes),
            slots: &inputs.slots,
            qk_norms,
            eps: unpacked.config.rms_norm_eps,
            offset: unpacked.config.norm_offset,
            k_cache: &cache.keys,
            v_cache: &cache.values,
            q_out: &buffers.queries,
        }
        .launch(&self.kernels)?;
        let (q, k_cache, v_cache) = (&buffers.queries, &cache.keys, &cache.values);
        match (&inputs.attention, &buffers.paged) {
            (AttentionInputs::Gathered(segments), _) => {
                cached_attention(q, k_cache, v_cache, segments, scale, window)
            }
            (AttentionInputs::Paged { context_lens, block_tables }, Some(paged)) => {
                let Paged { attended: out, workspace, splits } = paged;
                let splits = splits.of(q.size()[0] as usize);
                PagedDecodeAttention {
                    q,
                    k_cache,
                    v_cache,
                    block_tables,
                    context_lens,
                    scale,
                    window,
                    splits,
                    workspace,
                    out,
                }
                .launch(&self.kernels)?;
                Ok(out.shallow_clone())
            }
            (AttentionInputs::Paged { .. }, None) => {
                let (expected, got) = ("buffers of a decode".into(), "those of a prefill".into());
                Err(Error::Argument { act: "attention to the paged cache", expected, got })
            }
        }
    }

    pub(super) fn head(&self) -> &PackedLinear {
        self.weights.head()
    }

    pub(super) fn device(&self) -> Device {
        self.kernels.device()
    }

    pub(super) fn vocab_size(&self) -> usize {
        self.config().vocab_size
    }
}

impl Norms {
    fn of(layer: &DecoderLayer, weights: &RolloutWeights, cast: impl Fn(&Tensor) -> Tensor) -> Self {
        let norm = |norm: &Option<Norm>| norm.as_ref().map(|norm| cast(&norm.weight));
        let (layout, config) = (&weights.head_layout, &weights.unpacked.config);
        // A mean over padded heads is smaller; see `norm_over_heads`.
        let factor = match config.qk_norm {
            QkNorm::AllHeads => (layout.width as f64 / layout.padded_width as f64).sqrt(),
            _ => 1.0,
        };
        let of_heads =
            |norm: &Norm| cast(&layout.rope_rows(&times(&norm.weight, config.norm_offset, factor)));
        let norms = &layer.norms;
        Self {
            before_attention: norm(&norms.before_attention),
            after_attention: norm(&norms.after_attention),
            before_mlp: norm(&norms.before_mlp),
            after_mlp: norm(&norms.after_mlp),
            heads: norms.queries.as_ref().zip(norms.keys.as_ref()).map(|(q, k)| [of_heads(q), of_heads(k)]),
        }
    }
}

/// Returns the weight of a norm whose output is `factor` times as large.
fn times(weight: &Tensor, offset: f64, factor: f64) -> Tensor {
    let weight = weight.detach();
    if factor == 1.0 { weight } else { (weight.to_kind(Kind::Float) + offset) * factor - offset }
}

impl ActivationBuffers {
    /// Returns views of the first `rows` rows.
    pub(super) fn of_rows(&self, rows: usize) -> Self {
        let first = |tensor: &Tensor| tensor.narrow(0, 0, rows as i64);
        Self {
            residual: first(&self.residual),
            added: first(&self.added),
            normed: first(&self.normed),
            qkv: first(&self.qkv),
            queries: first(&self.queries),
            keys: self.keys.as_ref().map(first),
            gate_up: first(&self.gate_up),
            activated: first(&self.activated),
            scratch: Workspace {
                numbers: self.scratch.numbers.as_ref().map(Tensor::shallow_clone),
                inner: self.scratch.inner.as_ref().map(first),
                heads: self.scratch.heads.as_ref().map(first),
            },
            experts: self.experts.as_ref().map(|experts| experts.of_rows(rows)),
            paged: self.paged.as_ref().map(|paged| Paged {
                attended: first(&paged.attended),
                workspace: paged.workspace.shallow_clone(),
                splits: paged.splits,
            }),
        }
    }
}
