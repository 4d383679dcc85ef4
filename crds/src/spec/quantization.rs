//! `spec.model.quantization`: frozen weights in 4 or 8 bits below an adapter (QLoRA).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Supported numbers of 4-bit weights that share a scale.
pub const BLOCK_SIZES: [u32; 8] = [32, 64, 128, 256, 512, 1024, 2048, 4096];

/// Format of quantized weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum QuantizationFormat {
    /// 4 bits, NormalFloat: quantiles of the normal distribution (<https://arxiv.org/abs/2305.14314>).
    #[default]
    Nf4,
    /// 4 bits, floating point: a sign, two bits of exponent, one of mantissa.
    Fp4,
    /// 8 bits, one scale per row, as the weights of LLM.int8() (<https://arxiv.org/abs/2208.07339>);
    /// activations are not quantized.
    Int8,
}

/// Quantization of the linear layers of decoder layers: while they are read, or as bitsandbytes has stored
/// them, with which it must then agree. Embeddings, norms and the output head are not quantized. Layers
/// compute in `training.precision`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct QuantizationSpec {
    /// Format of the quantized weights.
    pub format: QuantizationFormat,
    /// Number of 4-bit weights that share a scale: 32, 64, 128, 256, 512, 1024, 2048 or 4096.
    #[schemars(range(min = 32, max = 4096))]
    pub block_size: u32,
    /// Whether the scales of 4-bit weights are quantized too, to 8 bits: 4.13 bits per weight in blocks of
    /// 64, else 4.5.
    pub double_quantization: bool,
    /// Modules that are not quantized, by the end or the beginning of their full name, or by a part before a
    /// dot, such as `down_proj` or `model.layers.0`.
    #[schemars(length(max = 64), inner(length(min = 1, max = 256), regex(pattern = r"^[A-Za-z0-9_.]+$")))]
    pub skip_modules: Vec<String>,
}

impl Default for QuantizationSpec {
    fn default() -> Self {
        Self {
            format: QuantizationFormat::Nf4,
            block_size: 64,
            double_quantization: false,
            skip_modules: Vec::new(),
        }
    }
}
