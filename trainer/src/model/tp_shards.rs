//! A rank's tensor-parallel shard of a decoder's products in rollout: the rows and columns of the weights
//! that it multiplies. The collectives are elsewhere.
//!
//! ```text
//! q, k, v       rows of local heads       -> queries of local heads, keys and values that these attend to
//! latents       full on each rank; their expansion is sharded as q, k and v
//! o             columns of local heads    -> a summand of the output; the first rank's has the bias
//! gate, up      rows of local width       -> local width of the feed-forward block
//! down          columns of local width    -> a summand of the output; the first rank's has the bias
//! experts       as gate, up and down, for every expert; the router is full on each rank
//! head          rows of local tokens      -> logits of local tokens
//! ```

use std::ops::Range;

use rlt_api::plan::model_config::ModelConfig;
use rlt_core::mesh::AxisPlace;
use tch::Tensor;

use super::ProjectionWeights;

/// The rule by which a decoder is sharded for one rank.
pub(crate) struct TpSharding<'a> {
    place: AxisPlace,
    config: &'a ModelConfig,
}

/// The shard of a weight [out, in], as a range of one dim.
#[derive(Clone, Debug)]
pub(crate) enum ShardedDim {
    /// A range of outputs.
    Rows(Range<usize>),
    /// A range of inputs.
    Columns(Range<usize>),
}

impl ShardedDim {
    /// Number of outputs in the shard of a weight with `num_outputs`.
    pub(crate) fn num_outputs(&self, num_outputs: usize) -> usize {
        match self {
            Self::Rows(rows) => rows.len(),
            Self::Columns(_) => num_outputs,
        }
    }

    /// The shard of an adapter with A [rank, in] and B [out, rank], as views. For a range of inputs its
    /// output is a summand of the full adapter's output, as it is for the weight.
    pub(crate) fn of_adapter(&self, [a, b]: [&Tensor; 2]) -> [Tensor; 2] {
        match self {
            Self::Rows(rows) => [a.shallow_clone(), b.narrow(0, rows.start as i64, rows.len() as i64)],
            Self::Columns(columns) => {
                [a.narrow(1, columns.start as i64, columns.len() as i64), b.shallow_clone()]
            }
        }
    }
}

impl<'a> TpSharding<'a> {
    pub(crate) fn new(place: AxisPlace, config: &'a ModelConfig) -> Self {
        Self { place, config }
    }

    /// The configuration of the model with the widths of a shard.
    pub(crate) fn config(&self) -> ModelConfig {
        self.config.tp_sharded(self.place.size)
    }

    /// Whether the shard is the full model.
    pub(crate) fn is_whole(&self) -> bool {
        self.place.size == 1
    }

    /// Views of a rank's shard of a layer's weights: q, k, v, o, and gate, up and down if it has a
    /// feed-forward block.
    pub(crate) fn layer(&self, weights: Vec<ProjectionWeights>) -> Vec<ProjectionWeights> {
        // A shared expert has a width of its own.
        let width = weights.get(4).map_or(0, |gate| gate.weight.size()[0] as usize);
        weights.into_iter().zip(self.kept(width)).map(|(weights, kept)| self.keep(weights, &kept)).collect()
    }

    /// Shards of q, k, v and o, and of gate, up and down of a feed-forward block of `width`.
    pub(crate) fn kept(&self, width: usize) -> Vec<ShardedDim> {
        let (place, config) = (self.place, self.config);
        if let Some(latent) = &config.latent {
            let heads = place.range(config.num_heads);
            let of_heads = |dim: usize| heads.start * dim..heads.end * dim;
            let attention = [
                ShardedDim::Rows(of_heads(latent.head_dim())),
                ShardedDim::Rows(0..latent.kv_cache_width()),
                ShardedDim::Rows(of_heads(latent.nope_dim + latent.value_dim)),
                ShardedDim::Columns(of_heads(latent.value_dim)),
            ];
            return attention.into_iter().chain(self.block(width)).collect();
        }
        let of_heads = |heads: Range<usize>| heads.start * config.head_dim..heads.end * config.head_dim;
        let queries = of_heads(place.range(config.num_heads));
        let keys = ShardedDim::Rows(of_heads(place.key_heads(config.num_kv_heads)));
        let attention = [ShardedDim::Rows(queries.clone()), keys.clone(), keys, ShardedDim::Columns(queries)];
        attention.into_iter().chain(self.block(width)).collect()
    }

    /// The shards of gate, up and down of a feed-forward block of `width`.
    fn block(&self, width: usize) -> [ShardedDim; 3] {
        let inner = self.place.range(width);
        [ShardedDim::Rows(inner.clone()), ShardedDim::Rows(inner.clone()), ShardedDim::Columns(inner)]
    }

    /// The shard of an expert's stacked gate and up, [2 width, hidden]: this rank's rows of both.
    pub(crate) fn expert_gate_up(&self, weight: &Tensor) -> Tensor {
        let own = self.place.range(weight.size()[0] as usize / 2);
        let halves = weight.unflatten(0, [2, -1]);
        halves.narrow(1, own.start as i64, own.len() as i64).flatten(0, 1)
    }

    /// The shard of an expert's down, [hidden, width]: this rank's columns.
    pub(crate) fn expert_down(&self, weight: &Tensor) -> Tensor {
        let own = self.place.range(weight.size()[1] as usize);
        weight.narrow(1, own.start as i64, own.len() as i64)
    }

    /// Views of the shard of a projection's weights. Of summands only the first rank's has the bias.
    pub(crate) fn keep(&self, weights: ProjectionWeights, kept: &ShardedDim) -> ProjectionWeights {
        let ProjectionWeights { weight, bias } = weights;
        let narrow = |tensor: &Tensor, dim, range: &Range<usize>| {
            tensor.narrow(dim, range.start as i64, range.len() as i64)
        };
        match kept {
            ShardedDim::Rows(rows) => ProjectionWeights {
                weight: narrow(&weight, 0, rows),
                bias: bias.map(|bias| narrow(&bias, 0, rows)),
            },
            ShardedDim::Columns(columns) => ProjectionWeights {
                weight: narrow(&weight, 1, columns),
                bias: bias.filter(|_| self.place.index == 0),
            },
        }
    }

    /// The shard of the head's weight [vocabulary, hidden]. Shorter shards are padded with zeros to the
    /// length of the longest.
    pub(crate) fn head(&self, weight_vd: &Tensor) -> Tensor {
        let rows = self.place.range(self.config.vocab_size);
        let missing = (self.place.longest(self.config.vocab_size) - rows.len()) as i64;
        let own_vd = weight_vd.detach().narrow(0, rows.start as i64, rows.len() as i64);
        if missing == 0 { own_vd } else { own_vd.constant_pad_nd([0, 0, 0, missing]) }
    }
}
