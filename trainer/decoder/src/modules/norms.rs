//! The norms of a decoder layer by position: of the residual stream before and after its blocks, and of
//! queries and keys.

use rlt_models::{BlockNorms, LATENT_NORM_EPS, LatentAttention, ModelConfig, NormKind, QkNorm};
use tch::Tensor;

use super::super::error::ModelError;
use super::super::ops;

/// A norm's weight and its module name inside the layer.
#[derive(Debug)]
pub struct Norm {
    pub(crate) name: &'static str,
    /// Weight of the norm, `[width]`.
    pub weight: Tensor,
}

/// All norms of a layer; `None` where the model's family has none at that position.
#[derive(Debug)]
pub struct LayerNorms {
    /// Norm of the input of attention.
    pub before_attention: Option<Norm>,
    /// Norm of the output of attention.
    pub after_attention: Option<Norm>,
    /// Norm of the input of the feed-forward block.
    pub before_mlp: Option<Norm>,
    /// Norm of the output of the feed-forward block.
    pub after_mlp: Option<Norm>,
    /// Norm of queries, of each head or of all.
    pub queries: Option<Norm>,
    /// Norm of keys, of each head or of all.
    pub keys: Option<Norm>,
    /// Norm of the latent of queries.
    pub(crate) query_latent: Option<Norm>,
    /// Norm of the latent of keys and values.
    pub(crate) key_latent: Option<Norm>,
    settings: NormSettings,
}

/// The shared settings of a layer's norms.
#[derive(Clone, Copy, Debug)]
struct NormSettings {
    kind: NormKind,
    eps: f64,
    offset: f64,
    /// Whether queries and keys are normalised over all heads of a token, not for each head.
    over_heads: bool,
}

impl LayerNorms {
    /// Makes the norms that `config` asks for; `of` gives the weight for a name inside the layer and a shape.
    pub(crate) fn new(
        config: &ModelConfig,
        of: impl Fn(&str, &[i64]) -> Result<Tensor, ModelError>,
    ) -> Result<Self, ModelError> {
        let norm = |name: Option<&'static str>, shape: &[usize]| {
            let shape: Vec<i64> = shape.iter().map(|dim| *dim as i64).collect();
            name.map(|name| of(name, &shape).map(|weight| Norm { name, weight })).transpose()
        };
        let stream = |name| norm(name, &[config.hidden_size]);
        let BlockNorms { before_attention, after_attention, before_mlp, after_mlp } = config.block_norms;
        let shapes = config.qk_norm_shapes();
        let latents = config.latent.as_ref().map(LatentAttention::norms);
        let of_latent = |named: Option<(&'static str, usize)>| {
            named.map_or(Ok(None), |(name, width)| norm(Some(name), &[width]))
        };
        let of_heads =
            |name, idx: usize| shapes.as_ref().map_or(Ok(None), |shapes| norm(Some(name), &shapes[idx]));
        Ok(Self {
            before_attention: stream(before_attention)?,
            after_attention: stream(after_attention)?,
            before_mlp: stream(before_mlp)?,
            after_mlp: stream(after_mlp)?,
            queries: of_heads("self_attn.q_norm", 0)?,
            keys: of_heads("self_attn.k_norm", 1)?,
            query_latent: of_latent(latents.and_then(|(queries, _)| queries))?,
            key_latent: of_latent(latents.map(|(_, keys)| keys))?,
            settings: NormSettings {
                kind: config.norm_kind,
                eps: config.rms_norm_eps,
                offset: config.norm_offset,
                over_heads: config.qk_norm == QkNorm::AllHeads,
            },
        })
    }

    /// Every norm, in checkpoint order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Norm> {
        let Self { before_attention, after_attention, before_mlp, after_mlp, queries, keys, .. } = self;
        let Self { query_latent, key_latent, .. } = self;
        let stream = [before_attention, after_attention, before_mlp, after_mlp];
        stream.into_iter().chain([queries, keys, query_latent, key_latent]).flatten()
    }

    /// Every norm, in checkpoint order.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Norm> {
        let Self { before_attention, after_attention, before_mlp, after_mlp, queries, keys, .. } = self;
        let Self { query_latent, key_latent, .. } = self;
        let stream = [before_attention, after_attention, before_mlp, after_mlp];
        stream.into_iter().chain([queries, keys, query_latent, key_latent]).flatten()
    }

    /// Returns a copy of the norms in which `of` replaces some weights; `None` if it replaces none.
    pub(crate) fn with_copies(&self, of: impl Fn(&Norm) -> Option<Tensor>) -> Option<Self> {
        let mut copies = self.map(Tensor::shallow_clone);
        let mut any = false;
        for norm in copies.iter_mut() {
            if let Some(weight) = of(norm) {
                (norm.weight, any) = (weight, true);
            }
        }
        any.then_some(copies)
    }

    /// Returns a copy of the norms, whose weights `of` makes from these.
    pub(crate) fn map(&self, of: impl Fn(&Tensor) -> Tensor) -> Self {
        let norm = |norm: &Option<Norm>| norm.as_ref().map(|norm| Norm { weight: of(&norm.weight), ..*norm });
        Self {
            before_attention: norm(&self.before_attention),
            after_attention: norm(&self.after_attention),
            before_mlp: norm(&self.before_mlp),
            after_mlp: norm(&self.after_mlp),
            queries: norm(&self.queries),
            keys: norm(&self.keys),
            query_latent: norm(&self.query_latent),
            key_latent: norm(&self.key_latent),
            settings: self.settings,
        }
    }

    /// Applies `norm` to `x` [tokens, hidden]; without a norm returns `x` itself.
    pub(crate) fn apply(&self, norm: Option<&Norm>, x: Tensor) -> Tensor {
        match norm {
            Some(Norm { weight, .. }) => {
                let NormSettings { kind, eps, offset, .. } = self.settings;
                ops::norm(kind, &x, weight, eps, offset)
            }
            None => x,
        }
    }

    /// Applies its norm to a latent [tokens, rank].
    pub(crate) fn latent(&self, norm: &Norm, x: &Tensor) -> Tensor {
        ops::rms_norm(x, &norm.weight, LATENT_NORM_EPS, 0.0)
    }

    /// Splits queries or keys [tokens, heads * head_dim] into heads [tokens, heads, head_dim] and applies
    /// their norm.
    pub(crate) fn heads(&self, norm: Option<&Norm>, x: &Tensor, head_dim: i64) -> Tensor {
        let split = |x: &Tensor| x.unflatten(-1, [-1, head_dim]);
        if self.settings.over_heads {
            split(&self.apply(norm, x.shallow_clone()))
        } else {
            self.apply(norm, split(x))
        }
    }
}
