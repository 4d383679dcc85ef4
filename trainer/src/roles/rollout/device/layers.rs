//! The decoder on a device as kernels into given buffers: nine launches a layer, whatever the number of rows.
//!
//! ```text
//! norm with residual, q k v, rope and cache, attention, output, norm with residual, gate and up, gate, down
//! ```
//! Where ranks multiply together two sums come to them, behind output and down, in the same stream.
//!
//! Rows are the tokens of a decode, one a sequence, which read the paged cache; or those of a prefill, for
//! which keys and values are gathered from there, once for all rows.

use rlt_api::plan::model_config::ModelConfig;
use rlt_torch::cuda::{
    EmbedGather, Kernels, PagedDecodeAttention, RmsNormResidual, RopeAndWriteKv, SwiGlu, attention_splits,
    attention_workspace_bytes,
};
use rlt_torch::{Activation, CachedSegments, Error, PackedLinear, cached_attention};
use tch::{Device, Kind, Tensor};

use super::Failure;
use super::peers::Peers;
use crate::model::activation_of;
use crate::roles::rollout::kv_cache::KvCache;
use crate::roles::rollout::weights::RolloutWeights;

/// A layer's norms before attention and behind it, and those of query and key heads.
type LayerNorms = (Tensor, Tensor, Option<(Tensor, Tensor)>);

/// Norms, embedding and frequencies as the kernels take them.
#[derive(Debug)]
pub(super) struct Model<'a> {
    pub(super) kernels: Kernels,
    pub(super) weights: &'a RolloutWeights,
    /// The ranks that have the other shards of the weights.
    pub(super) peers: Option<Peers>,
    embedding: Tensor,
    embedding_scale: f64,
    activation: Activation,
    norms: Vec<LayerNorms>,
    final_norm: Tensor,
    /// f32, of the pairs of a head.
    inverse_frequencies: Tensor,
    multiprocessors: usize,
}

/// What describes the rows of a pass, all on the device.
pub(super) struct Inputs {
    /// i32 `[rows]`.
    pub(super) tokens: Tensor,
    /// i32 `[rows]`.
    pub(super) positions: Tensor,
    /// i32 `[rows]`.
    pub(super) slots: Tensor,
    pub(super) seen: Seen,
}

/// What the rows of a pass attend to.
pub(super) enum Seen {
    /// Each row to its own sequence, one row a sequence.
    Paged {
        /// i32 `[rows]`.
        context_lens: Tensor,
        /// i32 `[rows, max_blocks]`.
        block_tables: Tensor,
    },
    /// Many rows to the same sequence.
    Gathered(CachedSegments),
}

/// What the layers write, for a number of rows.
pub(super) struct Buffers {
    residual: Tensor,
    added: Tensor,
    normed: Tensor,
    qkv: Tensor,
    queries: Tensor,
    gate_up: Tensor,
    activated: Tensor,
    /// For rows that read the paged cache.
    paged: Option<Paged>,
}

struct Paged {
    attended: Tensor,
    workspace: Tensor,
    splits: usize,
}

impl<'a> Model<'a> {
    /// Casts the norms once, and fills up what heads share where they are filled up.
    pub(super) fn new(
        kernels: Kernels,
        (weights, peers): (&'a RolloutWeights, Option<Peers>),
        multiprocessors: usize,
    ) -> Self {
        let frame = &weights.frame;
        let kind = frame.compute_kind();
        let cast = |tensor: &Tensor| tensor.detach().to_kind(kind).contiguous();
        let of_head = |tensor: &Tensor| cast(&weights.head_width.rows(tensor));
        let norms = frame.layers().iter().map(|layer| {
            let of_heads = layer.qk_norm.as_ref().map(|(q, k)| (of_head(q), of_head(k)));
            (cast(&layer.input_norm), cast(&layer.post_attention_norm), of_heads)
        });
        let has_all = frame.config.tie_word_embeddings && peers.is_none();
        let tied = weights.head().plain_weight().filter(|_| has_all);
        Self {
            kernels,
            weights,
            peers,
            embedding: tied.map_or_else(|| cast(&frame.embedding), Tensor::shallow_clone),
            embedding_scale: frame.embedding_scale(),
            activation: activation_of(frame.config.hidden_activation),
            norms: norms.collect(),
            final_norm: cast(&frame.norm),
            inverse_frequencies: weights.head_width.pairs(&frame.inverse_frequencies),
            multiprocessors,
        }
    }

    fn config(&self) -> &ModelConfig {
        &self.weights.frame.config
    }

    /// Buffers for the decode of at most `rows` rows.
    pub(super) fn decode_buffers(&self, rows: usize) -> Buffers {
        let config = &self.weights.shard;
        let (heads, kv_heads, head_dim) = (config.num_heads, config.num_kv_heads, config.head_dim);
        let splits = attention_splits(rows, kv_heads, self.multiprocessors);
        let num_bytes = attention_workspace_bytes(rows, heads, kv_heads, head_dim, splits);
        let buffers = self.buffers(rows);
        let attended = buffers.queries.empty_like();
        let workspace = Tensor::zeros([num_bytes as i64], (Kind::Uint8, self.kernels.device()));
        Buffers { paged: Some(Paged { attended, workspace, splits }), ..buffers }
    }

    /// Buffers for a prefill of `rows` rows.
    pub(super) fn buffers(&self, rows: usize) -> Buffers {
        let config = &self.weights.shard;
        let options = (self.weights.frame.compute_kind(), self.kernels.device());
        let (heads, kv_heads, head_dim) = (config.num_heads, config.num_kv_heads, config.head_dim);
        let empty = |width: usize| Tensor::empty([rows as i64, width as i64], options);
        Buffers {
            residual: empty(config.hidden_size),
            added: empty(config.hidden_size),
            normed: empty(config.hidden_size),
            qkv: empty((heads + 2 * kv_heads) * head_dim),
            queries: Tensor::empty([rows as i64, heads as i64, head_dim as i64], options),
            gate_up: empty(2 * config.intermediate_size),
            activated: empty(config.intermediate_size),
            paged: None,
        }
    }

    /// Runs all layers and writes keys and values of the rows into the cache; their hidden states behind the
    /// final norm are in what is returned.
    pub(super) fn run<'b>(
        &self,
        inputs: &Inputs,
        cache: &mut KvCache,
        buffers: &'b Buffers,
    ) -> Result<&'b Tensor, Failure> {
        let kernels = &self.kernels;
        EmbedGather {
            tokens: &inputs.tokens,
            embedding: &self.embedding,
            scale: self.embedding_scale,
            out: &buffers.residual,
        }
        .launch(kernels)?;
        for layer_idx in 0..self.norms.len() {
            self.layer(layer_idx, inputs, cache, buffers)?;
        }
        let added = (!self.norms.is_empty()).then_some(&buffers.added);
        self.norm(added, &self.final_norm, buffers)?;
        Ok(&buffers.normed)
    }

    /// Adds to the residual stream what the last block made, and normalises it.
    fn norm(&self, added: Option<&Tensor>, weight: &Tensor, buffers: &Buffers) -> Result<(), Error> {
        let config = self.config();
        let (eps, offset) = (config.rms_norm_eps, config.norm_offset);
        let (residual, out) = (&buffers.residual, &buffers.normed);
        RmsNormResidual { x: added, residual, weight, eps, offset, out }.launch(&self.kernels)
    }

    fn layer(
        &self,
        layer_idx: usize,
        inputs: &Inputs,
        cache: &mut KvCache,
        buffers: &Buffers,
    ) -> Result<(), Failure> {
        let (input_norm, post_attention_norm, _) = &self.norms[layer_idx];
        let products = self.weights.products(layer_idx);
        self.norm((layer_idx > 0).then_some(&buffers.added), input_norm, buffers)?;
        products.qkv.forward_into(&buffers.normed, &buffers.qkv)?;
        let attended = self.attend(layer_idx, inputs, cache, buffers)?;
        products.output.forward_into(&attended.flatten(1, 2), &buffers.added)?;
        self.sum(&buffers.added)?;
        self.norm(Some(&buffers.added), post_attention_norm, buffers)?;
        products.gate_up.forward_into(&buffers.normed, &buffers.gate_up)?;
        let (gate_up, out) = (&buffers.gate_up, &buffers.activated);
        SwiGlu { gate_up, activation: self.activation, out }.launch(&self.kernels)?;
        products.down.forward_into(&buffers.activated, &buffers.added)?;
        self.sum(&buffers.added)
    }

    /// Adds up what all ranks have.
    fn sum(&self, own: &Tensor) -> Result<(), Failure> {
        self.peers.as_ref().map_or(Ok(()), |peers| Ok(peers.all_reduce(own)?))
    }

    fn attend(
        &self,
        layer_idx: usize,
        inputs: &Inputs,
        cache: &mut KvCache,
        buffers: &Buffers,
    ) -> Result<Tensor, Error> {
        let frame = &self.weights.frame;
        let layer = &frame.layers()[layer_idx];
        let (scale, window) = (layer.attention_scale(), layer.window());
        let cache = cache.layer(layer_idx);
        let qk_norms = self.norms[layer_idx].2.as_ref().map(|(q, k)| (q, k));
        RopeAndWriteKv {
            qkv: &buffers.qkv,
            inverse_frequencies: &self.inverse_frequencies,
            norm_width: frame.config.head_dim,
            rope_factor: frame.config.rope_scaling.attention_factor(),
            positions: &inputs.positions,
            slots: &inputs.slots,
            qk_norms,
            eps: frame.config.rms_norm_eps,
            offset: frame.config.norm_offset,
            k_cache: &cache.keys,
            v_cache: &cache.values,
            q_out: &buffers.queries,
        }
        .launch(&self.kernels)?;
        let (q, k_cache, v_cache) = (&buffers.queries, &cache.keys, &cache.values);
        match (&inputs.seen, &buffers.paged) {
            (Seen::Gathered(segments), _) => cached_attention(q, (k_cache, v_cache), segments, scale, window),
            (Seen::Paged { context_lens, block_tables }, Some(Paged { attended, workspace, splits })) => {
                let (splits, out) = (*splits, attended);
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
                Ok(attended.shallow_clone())
            }
            (Seen::Paged { .. }, None) => {
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

impl Buffers {
    /// The same memory for fewer rows.
    pub(super) fn of_rows(&self, rows: usize) -> Self {
        let first = |tensor: &Tensor| tensor.narrow(0, 0, rows as i64);
        Self {
            residual: first(&self.residual),
            added: first(&self.added),
            normed: first(&self.normed),
            qkv: first(&self.qkv),
            queries: first(&self.queries),
            gate_up: first(&self.gate_up),
            activated: first(&self.activated),
            paged: self.paged.as_ref().map(|paged| Paged {
                attended: first(&paged.attended),
                workspace: paged.workspace.shallow_clone(),
                splits: paged.splits,
            }),
        }
    }
}
