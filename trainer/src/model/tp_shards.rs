//! A rank's tensor-parallel shard of a decoder's products: the rows and columns of the weights that it
//! multiplies with. The collectives are elsewhere.
//!
//! ```text
//! q, k, v       rows of own heads       -> queries of own heads, keys and values that these attend to
//! latents       whole on each rank; what expands them as q, k and v
//! o             columns of own heads    -> a summand of the output, which one shard gives its bias
//! gate, up      rows of own width       -> own part of the feed-forward block
//! down          columns of own width    -> a summand of the output, likewise
//! experts       as gate, up and down    -> the same of every expert; the router is whole on each rank
//! head          rows of own tokens      -> logits of own tokens
//! ```

use std::ops::Range;

use rlt_api::plan::model_config::ModelConfig;
use rlt_core::tensor_parallel::TpShard;
use tch::Tensor;

use super::ProjectionWeights;

/// How a decoder is cut.
pub(crate) struct TpCut<'a> {
    shard: TpShard,
    config: &'a ModelConfig,
}

/// The shard of a weight [out, in].
#[derive(Clone, Debug)]
pub(crate) enum ShardedDim {
    /// Outputs.
    Rows(Range<usize>),
    /// Inputs.
    Columns(Range<usize>),
}

impl ShardedDim {
    /// Outputs of what is kept of a weight with `num_outputs`.
    pub(crate) fn num_outputs(&self, num_outputs: usize) -> usize {
        match self {
            Self::Rows(rows) => rows.len(),
            Self::Columns(_) => num_outputs,
        }
    }

    /// The adapter of what is kept, from A [rank, in] and B [out, rank] of the weight; views of them. Of
    /// columns it gives a summand of what the whole adapter adds, as the weight does.
    pub(crate) fn of_adapter(&self, [a, b]: [&Tensor; 2]) -> [Tensor; 2] {
        match self {
            Self::Rows(rows) => [a.shallow_clone(), b.narrow(0, rows.start as i64, rows.len() as i64)],
            Self::Columns(columns) => {
                [a.narrow(1, columns.start as i64, columns.len() as i64), b.shallow_clone()]
            }
        }
    }
}

impl<'a> TpCut<'a> {
    pub(crate) fn new(shard: TpShard, config: &'a ModelConfig) -> Self {
        Self { shard, config }
    }

    /// The model as wide as the shard is.
    pub(crate) fn config(&self) -> ModelConfig {
        self.config.tp_sharded(self.shard.num_shards)
    }

    /// Whether nothing is cut off.
    pub(crate) fn is_whole(&self) -> bool {
        self.shard.num_shards == 1
    }

    /// The shard of a layer's weights, q, k, v, o and the feed-forward block's gate, up and down where it has
    /// one; views of them.
    pub(crate) fn layer(&self, weights: Vec<ProjectionWeights>) -> Vec<ProjectionWeights> {
        // The block beside experts has a width of its own.
        let width = weights.get(4).map_or(0, |gate| gate.weight.size()[0] as usize);
        weights.into_iter().zip(self.kept(width)).map(|(weights, kept)| self.keep(weights, &kept)).collect()
    }

    /// What is kept of q, k, v and o, and of gate, up and down of a feed-forward block of `width`.
    pub(crate) fn kept(&self, width: usize) -> Vec<ShardedDim> {
        let (shard, config) = (self.shard, self.config);
        if let Some(latent) = &config.latent {
            let heads = shard.of(config.num_heads);
            let of_heads = |dim: usize| heads.start * dim..heads.end * dim;
            let attention = [
                ShardedDim::Rows(of_heads(latent.head_dim())),
                ShardedDim::Rows(0..latent.cached()),
                ShardedDim::Rows(of_heads(latent.plain_dim + latent.value_dim)),
                ShardedDim::Columns(of_heads(latent.value_dim)),
            ];
            return attention.into_iter().chain(self.block(width)).collect();
        }
        let of_heads = |heads: Range<usize>| heads.start * config.head_dim..heads.end * config.head_dim;
        let queries = of_heads(shard.of(config.num_heads));
        let keys = ShardedDim::Rows(of_heads(shard.of_key_heads(config.num_kv_heads)));
        let attention = [ShardedDim::Rows(queries.clone()), keys.clone(), keys, ShardedDim::Columns(queries)];
        attention.into_iter().chain(self.block(width)).collect()
    }

    /// The shards of gate, up and down of a feed-forward block of `width`.
    fn block(&self, width: usize) -> [ShardedDim; 3] {
        let inner = self.shard.of(width);
        [ShardedDim::Rows(inner.clone()), ShardedDim::Rows(inner.clone()), ShardedDim::Columns(inner)]
    }

    /// The shard of an expert's gate above up, [2 width, hidden]: own rows of both.
    pub(crate) fn expert_gate_up(&self, weight: &Tensor) -> Tensor {
        let own = self.shard.of(weight.size()[0] as usize / 2);
        let halves = weight.unflatten(0, [2, -1]);
        halves.narrow(1, own.start as i64, own.len() as i64).flatten(0, 1)
    }

    /// The shard of an expert's down, [hidden, width]: own columns.
    pub(crate) fn expert_down(&self, weight: &Tensor) -> Tensor {
        let own = self.shard.of(weight.size()[1] as usize);
        weight.narrow(1, own.start as i64, own.len() as i64)
    }

    /// The shard of a projection's weights; views of them.
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
                bias: bias.filter(|_| self.shard.place == 0),
            },
        }
    }

    /// The shard of the head's weight [vocabulary, hidden]; zeros fill the last ones up to the length of the
    /// first.
    pub(crate) fn head(&self, weight_vd: &Tensor) -> Tensor {
        let rows = self.shard.of(self.config.vocab_size);
        let missing = (self.shard.longest(self.config.vocab_size) - rows.len()) as i64;
        let own_vd = weight_vd.detach().narrow(0, rows.start as i64, rows.len() as i64);
        if missing == 0 { own_vd } else { own_vd.constant_pad_nd([0, 0, 0, missing]) }
    }
}
