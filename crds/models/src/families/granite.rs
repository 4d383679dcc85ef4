//! Granite 3: Llama with scaled embeddings, attention, residual sums and logits.

use serde_json::json;

use super::{Defaults, Definition, nothing, read_attention_bias, write_attention_bias};

pub(super) const GRANITE: Definition = Definition {
    architecture: "GraniteForCausalLM",
    classifier: "GraniteForSequenceClassification",
    model_type: "granite",
    has_classifier: true,
    has_windows: false,
    defaults: Defaults::LLAMA,
    shape: nothing,
    read: |fields, config| {
        read_attention_bias(fields, config)?;
        config.mlp_bias = fields.flag("mlp_bias")?.unwrap_or(false);
        config.embedding_scale = fields.number("embedding_multiplier")?.unwrap_or(1.0);
        config.attention_scale = fields.number("attention_multiplier")?.unwrap_or(1.0);
        config.residual_scale = fields.number("residual_multiplier")?.unwrap_or(1.0);
        let scaling = fields.number("logits_scaling")?.unwrap_or(1.0);
        if scaling == 0.0 {
            return Err(fields.invalid("logits_scaling", "a number other than 0"));
        }
        config.logit_scale = 1.0 / scaling;
        Ok(())
    },
    write: |config, document| {
        write_attention_bias(config, document);
        document["mlp_bias"] = config.mlp_bias.into();
        document["embedding_multiplier"] = json!(config.embedding_scale);
        document["attention_multiplier"] = json!(config.attention_scale);
        document["residual_multiplier"] = json!(config.residual_scale);
        document["logits_scaling"] = json!(1.0 / config.logit_scale);
    },
};
