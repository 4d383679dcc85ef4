//! OLMo 2: norms after the blocks instead of before them, and one norm over all heads of queries and of keys.

use super::super::super::{BlockNorms, ModelConfig, QkNorm};
use super::super::{Defaults, Definition, read_attention_bias, write_attention_bias};

/// Defaults of OLMo 2 and 3.
pub(super) const DEFAULTS: Defaults =
    Defaults { rms_norm_eps: 1e-5, bos: None, eos: &[50_279], pad: Some(1), ..Defaults::LLAMA };

pub(in crate::families) const OLMO2: Definition = Definition {
    architecture: "Olmo2ForCausalLM",
    classifier: "Olmo2ForSequenceClassification",
    model_type: "olmo2",
    has_classifier: true,
    has_windows: false,
    defaults: DEFAULTS,
    shape,
    read: read_attention_bias,
    write: write_attention_bias,
};

pub(super) fn shape(config: &mut ModelConfig) {
    config.block_norms = BlockNorms::AFTER;
    config.qk_norm = QkNorm::AllHeads;
}
