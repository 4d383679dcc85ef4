//! Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): keys and values of all heads are projected
//! from one latent per token. A separate part of the keys has rotary embedding and is shared by all heads.
//!
//! ```text
//! queries  (q_a_proj -> norm -> q_b_proj) or q_proj     a head: [not rotated | rotated]
//! keys     kv_a_proj_with_mqa -> [latent | rotated]
//!          latent -> norm -> kv_b_proj                   a head: [not rotated | values]
//! ```
//! A cache needs only the normed latent and the rotated part of the keys.

use serde_json::Value;

use super::fields::Fields;
use super::{LatentAttention, ModelConfig, ModelConfigError, ProjectionShape, RopePairing, RopeScaling};

/// Epsilon of the latents' norms, whatever the configuration says about other norms.
pub const LATENT_NORM_EPS: f64 = 1e-6;

impl LatentAttention {
    /// Returns the latent attention of a model that is initialized with heads of `head_dim`.
    pub(super) fn of_heads(head_dim: usize) -> Self {
        Self {
            query_rank: None,
            rank: 2 * head_dim,
            nope_dim: head_dim,
            rope_dim: head_dim,
            value_dim: head_dim,
        }
    }

    /// Reads the widths, with the defaults of DeepSeek's configuration classes.
    fn read(fields: &Fields<'_>) -> Result<Self, ModelConfigError> {
        let size = |field: &str, default: usize| Ok(fields.size(field)?.unwrap_or(default));
        let query_rank = match fields.get("q_lora_rank") {
            None => Some(1536),
            Some(_) => fields.size("q_lora_rank")?,
        };
        let latent = Self {
            query_rank,
            rank: size("kv_lora_rank", 512)?,
            nope_dim: size("qk_nope_head_dim", 128)?,
            rope_dim: size("qk_rope_head_dim", 64)?,
            value_dim: size("v_head_dim", 128)?,
        };
        if !latent.rope_dim.is_multiple_of(2) {
            return Err(
                fields.invalid("qk_rope_head_dim", "an even number, as the rotary embedding turns pairs")
            );
        }
        Ok(latent)
    }

    /// Width of a query or key head.
    pub fn head_dim(&self) -> usize {
        self.nope_dim + self.rope_dim
    }

    /// Number of elements that a layer's cache keeps for a token.
    pub fn kv_cache_width(&self) -> usize {
        self.rank + self.rope_dim
    }

    /// Returns the linear layers of attention, in checkpoint order.
    pub(super) fn projections(&self, config: &ModelConfig) -> Vec<ProjectionShape> {
        let (hidden, heads) = (config.hidden_size, config.num_heads);
        let shape =
            |name, out_features, in_features, bias| ProjectionShape { name, out_features, in_features, bias };
        let queries = heads * self.head_dim();
        let queries = match self.query_rank {
            None => vec![shape("self_attn.q_proj", queries, hidden, false)],
            Some(rank) => vec![
                shape("self_attn.q_a_proj", rank, hidden, config.qkv_bias),
                shape("self_attn.q_b_proj", queries, rank, false),
            ],
        };
        let expanded = heads * (self.nope_dim + self.value_dim);
        let keys = vec![
            shape("self_attn.kv_a_proj_with_mqa", self.kv_cache_width(), hidden, config.qkv_bias),
            shape("self_attn.kv_b_proj", expanded, self.rank, false),
            shape("self_attn.o_proj", hidden, heads * self.value_dim, config.output_bias),
        ];
        [queries, keys].concat()
    }

    /// Returns module name and width of the latents' norms: for queries, where they have a latent, and for
    /// keys.
    pub fn norms(&self) -> (Option<(&'static str, usize)>, (&'static str, usize)) {
        (
            self.query_rank.map(|rank| ("self_attn.q_a_layernorm", rank)),
            ("self_attn.kv_a_layernorm", self.rank),
        )
    }
}

impl ModelConfig {
    /// Reads latent attention from a family's configuration.
    pub(super) fn read_latent_attention(&mut self, fields: &Fields<'_>) -> Result<(), ModelConfigError> {
        let latent = LatentAttention::read(fields)?;
        if self.num_kv_heads != self.num_heads {
            let supported =
                format!("num_attention_heads, {}: all heads have keys of one latent", self.num_heads);
            return Err(fields.unsupported("num_key_value_heads", &supported));
        }
        let bias = fields.flag("attention_bias")?.unwrap_or(false);
        (self.qkv_bias, self.output_bias) = (bias, bias);
        self.set_latent_attention(latent);
        Ok(())
    }

    /// Sets latent attention with the given widths; scores are scaled by YaRN's `mscale_all_dim`.
    pub(super) fn set_latent_attention(&mut self, latent: LatentAttention) {
        self.head_dim = latent.head_dim();
        self.rotary_dim = latent.rope_dim;
        let sharpness = match self.ropes.first().map(|rope| &rope.scaling) {
            Some(RopeScaling::Yarn { factor, scale_all_dims: Some(scale), .. }) if *factor > 1.0 => {
                0.1 * scale * factor.ln() + 1.0
            }
            _ => 1.0,
        };
        self.attention_scale = (self.head_dim as f64).powf(-0.5) * sharpness * sharpness;
        self.latent = Some(latent);
    }

    /// Writes the fields that [`Self::read_latent_attention`] reads.
    pub(super) fn write_latent_attention(&self, document: &mut Value) {
        let Some(latent) = &self.latent else { return };
        document["q_lora_rank"] = latent.query_rank.into();
        document["kv_lora_rank"] = latent.rank.into();
        document["qk_nope_head_dim"] = latent.nope_dim.into();
        document["qk_rope_head_dim"] = latent.rope_dim.into();
        document["v_head_dim"] = latent.value_dim.into();
        document["attention_bias"] = self.qkv_bias.into();
        // In transformers the head of latent attention is its rotated part.
        document["head_dim"] = latent.rope_dim.into();
        document["qk_head_dim"] = latent.head_dim().into();
        if let Some(document) = document.as_object_mut() {
            document.remove("partial_rotary_factor");
        }
    }

    /// Width of the head, or in latent attention of its rotated part, to which the partial rotary factor
    /// applies.
    pub fn rope_head_dim(&self) -> usize {
        self.latent.as_ref().map_or(self.head_dim, |latent| latent.rope_dim)
    }

    /// Number of elements that one layer's cache keeps for a token.
    pub fn cached_numbers(&self) -> usize {
        self.latent.as_ref().map_or(2 * self.num_kv_heads * self.head_dim, LatentAttention::kv_cache_width)
    }

    /// Reads `rope_interleave`: whether the rotary embedding pairs adjacent dimensions.
    pub(super) fn read_rope_interleave(&mut self, fields: &Fields<'_>) -> Result<(), ModelConfigError> {
        let interleaves = fields.flag("rope_interleave")?.unwrap_or(true);
        self.rope_pairing = if interleaves { RopePairing::Neighbours } else { RopePairing::Halves };
        Ok(())
    }
}
