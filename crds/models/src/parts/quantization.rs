//! Quantization of linear layers.

use rlt_api::spec::{Precision, QuantizationFormat};

/// Quantization of a model's linear layers.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantization {
    /// Number format of the weights.
    pub format: QuantizationFormat,
    /// Number of 4-bit weights that share a scale.
    pub block_size: usize,
    /// Whether the scales are quantized to 8 bits (double quantization).
    pub double: bool,
    /// Modules that are not quantized.
    pub skip_modules: Vec<String>,
    /// Whether the checkpoint's weights are already quantized; otherwise they are quantized when they are
    /// read.
    pub is_stored: bool,
    /// Dtype of the weights before quantization, where the files state it; `None` means the compute dtype.
    pub stored: Option<Precision>,
}
