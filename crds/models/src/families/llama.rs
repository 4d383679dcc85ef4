//! Llama 2 and 3: the shape from which the other families differ.

use super::{Defaults, Definition, nothing, read_attention_bias, write_attention_bias};

pub(super) const LLAMA: Definition = Definition {
    architecture: "LlamaForCausalLM",
    classifier: "LlamaForSequenceClassification",
    model_type: "llama",
    has_classifier: true,
    has_windows: false,
    defaults: Defaults::LLAMA,
    shape: nothing,
    read: |fields, config| {
        config.mlp_bias = fields.flag("mlp_bias")?.unwrap_or(false);
        read_attention_bias(fields, config)
    },
    write: |config, document| {
        write_attention_bias(config, document);
        document["mlp_bias"] = config.mlp_bias.into();
    },
};
