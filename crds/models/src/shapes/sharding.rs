//! Tensor-parallel and expert-parallel layouts of a model's parameters, by checkpoint name, before FSDP
//! shards them. Memory plan, training and rollout read this table.
//!
//! ```text
//! tensor parallel      (Megatron-LM, Shoeybi et al. 2019)
//! q, k, v, gate, up    rows of a rank's heads and width, with their biases     (column-parallel)
//! o, down              columns of a rank's heads and width; biases are full    (row-parallel)
//! latents              full; their expansion is split as q, k and v are
//! embedding, head      rows of a rank's tokens
//! norms, value head    full
//! experts              as gate, up and down, for every expert; router and gate of the shared expert are full
//! adapter              of split rows: full A, rows of B;  of split columns: columns of A, full B
//!
//! expert parallel
//! experts              all weights of a rank's experts; everything else is full
//! ```
//! A replicated parameter that acts on the residual stream has the same gradient on all ranks. One that acts
//! on a rank's local heads, or on its shard of a product, has a partial gradient on each rank; the gradient
//! is their sum.

mod layer;
mod sizes;

use std::collections::BTreeMap;

use rlt_layout::{Axis, AxisPlace, DimRanges, DimShards, ParameterLayout, Placement};

use super::super::{Experts, HEAD_WEIGHT, ModelConfig, OutputHead, ParameterShape, is_expert_weight};
use super::EMBEDDING_WEIGHT;
use layer::{ADAPTER_A, ADAPTER_B, INNER_EXPERTS, OUTER_EXPERTS, splits_of_layer};

/// Rule that assigns the blocks of a dimension to ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockShare {
    /// Every block is held by exactly one rank.
    Own,
    /// Every rank holds the key heads to which its query heads attend. With more ranks than key heads,
    /// several ranks hold the same key head.
    KeyHeads,
    /// Every rank holds all blocks.
    All,
}

/// Consecutive blocks of a dimension, such as heads, which are never split themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Blocks {
    /// Index at which the first block begins.
    start: usize,
    /// Number of blocks.
    count: usize,
    /// Length of each block.
    len: usize,
    /// Rule that assigns the blocks to ranks.
    share: BlockShare,
}

impl BlockShare {
    /// Returns the largest number of blocks, of `count`, that one of `num_ranks` ranks holds.
    fn largest_count(self, count: usize, num_ranks: usize) -> usize {
        match self {
            Self::Own => count.div_ceil(num_ranks),
            Self::KeyHeads => (count / num_ranks).max(1),
            Self::All => count,
        }
    }
}

impl Blocks {
    /// Returns the largest number of indices that one of `num_ranks` ranks holds.
    fn largest_share(&self, num_ranks: usize) -> usize {
        self.share.largest_count(self.count, num_ranks) * self.len
    }
}

/// A dimension of a parameter that is split over ranks: each rank holds some blocks of each part. A fused
/// weight has several parts.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DimSplit {
    /// Index of the dimension.
    dim: usize,
    /// Length of the dimension.
    len: usize,
    /// Parts of the dimension, ascending.
    parts: Vec<Blocks>,
}

impl DimSplit {
    /// Splits dimension `dim`, which has `count` blocks of length `len`.
    fn new(dim: usize, count: usize, len: usize, share: BlockShare) -> Self {
        Self { dim, len: count * len, parts: vec![Blocks { start: 0, count, len, share }] }
    }

    fn rows(count: usize, len: usize) -> Self {
        Self::new(0, count, len, BlockShare::Own)
    }

    fn columns(count: usize, len: usize) -> Self {
        Self::new(1, count, len, BlockShare::Own)
    }

    /// Returns the same split of the next dimension, for a tensor that stacks several such weights.
    fn stacked(&self) -> Self {
        Self { dim: self.dim + 1, ..self.clone() }
    }

    /// Returns the indices of the dimension that each of `num_ranks` ranks holds.
    fn shards(&self, num_ranks: usize) -> DimShards {
        let of_rank = |place: AxisPlace| {
            let ranges = self.parts.iter().map(|part| {
                let own = match part.share {
                    BlockShare::Own => place.range(part.count),
                    BlockShare::KeyHeads => place.key_heads(part.count),
                    BlockShare::All => 0..part.count,
                };
                part.start + own.start * part.len..part.start + own.end * part.len
            });
            DimRanges { len: self.len, ranges: ranges.collect() }
        };
        let ranks = AxisPlace { index: 0, size: num_ranks }.all();
        DimShards { dim: self.dim, of_ranks: ranks.map(of_rank).collect() }
    }

    /// Returns the largest number of indices that one of `num_ranks` ranks holds.
    fn largest_share(&self, num_ranks: usize) -> usize {
        self.parts.iter().map(|part| part.largest_share(num_ranks)).sum()
    }
}

/// How the ranks of a tensor-parallel group split a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ParameterSplit {
    /// Every rank holds the full parameter and computes its full gradient.
    Replicate,
    /// Every rank holds some indices of one dimension.
    Dim(DimSplit),
    /// Every rank holds the full parameter and computes a partial gradient; the gradient is their sum.
    Partial,
}

/// The splits of a model's parameters and of its adapters'.
#[derive(Clone, Debug)]
pub struct ModelSharding {
    vocabulary: DimSplit,
    head_is_split: bool,
    num_experts: usize,
    /// Splits of each layer's parameters that are not replicated, by their names inside the layer.
    layers: Vec<BTreeMap<String, ParameterSplit>>,
}

impl ModelSharding {
    /// Makes the table of a model. For a layer whose experts have an adapter of gate and up and none of down,
    /// see [`Self::adapting_gate_and_up_alone`].
    pub fn new(model: &ModelConfig) -> Self {
        Self {
            vocabulary: DimSplit::rows(model.vocab_size, 1),
            head_is_split: model.head == OutputHead::Vocabulary,
            num_experts: model.experts.as_ref().map_or(0, |experts| experts.num_experts),
            layers: (0..model.num_layers).map(|layer_idx| splits_of_layer(model, layer_idx)).collect(),
        }
    }

    /// Declares that the experts of layer `layer_idx` have an adapter of gate and up, but none of down. PEFT
    /// wraps the module of experts once for each adapter. With both adapters the outer wrapper is that of
    /// down; here the only wrapper is that of gate and up.
    pub fn adapting_gate_and_up_alone(&mut self, layer_idx: usize) {
        let Some(splits) = self.layers.get_mut(layer_idx) else { return };
        for part in [ADAPTER_A, ADAPTER_B] {
            let inner = splits.get(&format!("{INNER_EXPERTS}{part}")).cloned();
            splits.extend(inner.map(|split| (format!("{OUTER_EXPERTS}{part}"), split)));
        }
    }

    /// Returns the layout of a parameter, by its name in any role, over tensor-parallel groups of `tp` ranks
    /// and expert-parallel groups of `ep` ranks.
    pub fn layout(&self, name: &str, tp: usize, ep: usize) -> ParameterLayout {
        let mut layout = ParameterLayout::default();
        if tp > 1 {
            let placement = match self.along_tp(name) {
                ParameterSplit::Replicate => Placement::Replicate,
                ParameterSplit::Partial => Placement::Partial,
                ParameterSplit::Dim(split) => Placement::Shard(split.shards(tp)),
            };
            layout = layout.with(Axis::Tp, placement);
        }
        if let Some(split) = self.along_ep(name).filter(|_| ep > 1) {
            layout = layout.with(Axis::Ep, Placement::Shard(split.shards(ep)));
        }
        layout
    }

    /// Returns the split of a parameter over the ranks of a tensor-parallel group, by its name in any role.
    fn along_tp(&self, name: &str) -> ParameterSplit {
        let is_of_tokens =
            name.ends_with(EMBEDDING_WEIGHT) || (self.head_is_split && name.ends_with(HEAD_WEIGHT));
        if is_of_tokens {
            return ParameterSplit::Dim(self.vocabulary.clone());
        }
        let split = inside_layer(name).and_then(|(layer_idx, rest)| self.layers.get(layer_idx)?.get(rest));
        split.cloned().unwrap_or(ParameterSplit::Replicate)
    }

    /// Returns the split of a parameter over the ranks of an expert-parallel group, by its name in any role;
    /// `None` if every rank holds the full parameter.
    fn along_ep(&self, name: &str) -> Option<DimSplit> {
        is_expert_weight(name).then(|| DimSplit::rows(self.num_experts, 1))
    }

    /// Returns the largest number of elements of a parameter on one rank, with tensor-parallel groups of `tp`
    /// ranks and expert-parallel groups of `ep` ranks.
    pub(crate) fn largest_part(&self, parameter: &ParameterShape, tp: usize, ep: usize) -> u64 {
        let mut shape = parameter.shape.clone();
        if let ParameterSplit::Dim(split) = self.along_tp(&parameter.name) {
            shape[split.dim] = split.largest_share(tp);
        }
        if let Some(split) = self.along_ep(&parameter.name) {
            shape[split.dim] = split.largest_share(ep);
        }
        shape.iter().map(|len| *len as u64).product()
    }
}

impl ModelConfig {
    /// Returns the shards of the weights of q, k, v, o, gate, up and down over `tp` tensor-parallel ranks,
    /// each as a weight of its own: one for each of [`Self::products`].
    pub fn product_shards(&self, layer_idx: usize, tp: usize) -> Vec<DimShards> {
        self.product_splits(layer_idx).iter().map(|split| split.shards(tp)).collect()
    }

    /// Returns the splits of the weights of q, k, v, o, gate, up and down, each as a separate weight.
    fn product_splits(&self, layer_idx: usize) -> Vec<DimSplit> {
        let heads = self.num_heads;
        let attention = match &self.latent {
            Some(latent) => [
                DimSplit::rows(heads, latent.head_dim()),
                DimSplit::new(0, 1, latent.kv_cache_width(), BlockShare::All),
                DimSplit::rows(heads, latent.nope_dim + latent.value_dim),
                DimSplit::columns(heads, latent.value_dim),
            ],
            None => {
                let len = self.head_dim;
                let keys = DimSplit::new(0, self.num_kv_heads, len, BlockShare::KeyHeads);
                [DimSplit::rows(heads, len), keys.clone(), keys, DimSplit::columns(heads, len)]
            }
        };
        let block = self.feed_forward_width(layer_idx).map(block_splits);
        attention.into_iter().chain(block.into_iter().flatten()).collect()
    }
}

impl Experts {
    /// Returns the shards of the stacked gate and up of one expert, [2 width, hidden], and of its down,
    /// [hidden, width], over `tp` tensor-parallel ranks.
    pub fn shards(&self, tp: usize) -> [DimShards; 2] {
        self.splits().map(|split| split.shards(tp))
    }

    /// Returns the splits of the stacked gate and up of one expert, and of its down.
    fn splits(&self) -> [DimSplit; 2] {
        let width = self.intermediate_size;
        let half = |start| Blocks { start, count: width, len: 1, share: BlockShare::Own };
        let gate_up = DimSplit { dim: 0, len: 2 * width, parts: vec![half(0), half(width)] };
        [gate_up, DimSplit::columns(width, 1)]
    }
}

/// Returns the splits of gate, up and down of a block of this width.
fn block_splits(width: usize) -> [DimSplit; 3] {
    [DimSplit::rows(width, 1), DimSplit::rows(width, 1), DimSplit::columns(width, 1)]
}

/// Parses the layer index in the name of a parameter or of an adapter, and the name inside the layer.
fn inside_layer(name: &str) -> Option<(usize, &str)> {
    let (layer_idx, rest) = name.split_once(".layers.")?.1.split_once('.')?;
    Some((layer_idx.parse().ok()?, rest))
}

#[cfg(test)]
mod tests;
