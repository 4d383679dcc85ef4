//! Converts a [`ModelConfig`] back to a `config.json` that transformers 4 and 5 read as the same model.

use serde_json::{Value, json};

use super::super::head::class_of;
use super::super::{HiddenActivation, ModelConfig, OutputHead, RopeConfig, RopeScaling, families, rope};

pub(crate) fn to_json(config: &ModelConfig, dtype: &str) -> Value {
    let rope = config.ropes.first().cloned().unwrap_or(PLAIN);
    let mut document = json!({
        "architectures": [class_of(config.head, config.family)],
        "model_type": families::definition(config.family).model_type,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_position_embeddings,
        "hidden_act": activation(config.hidden_activation),
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": rope.theta,
        "rope_scaling": rope::scaling_json(&rope.scaling),
        "tie_word_embeddings": config.tie_word_embeddings,
        "initializer_range": config.initializer_range,
        "attention_dropout": 0.0,
        "bos_token_id": config.bos_token_id,
        "pad_token_id": config.pad_token_id,
        "eos_token_id": eos(&config.eos_token_ids),
        "torch_dtype": dtype,
        "use_cache": true,
    });
    if config.rotary_dim != config.head_dim {
        let factor = config.rotary_dim as f64 / config.head_dim as f64;
        document["partial_rotary_factor"] = factor.into();
    }
    if let RopeScaling::LongRope { original_max_position_embeddings, .. } = rope.scaling {
        document["original_max_position_embeddings"] = (original_max_position_embeddings as u64).into();
    }
    write_labels(config.head, &mut document);
    (families::definition(config.family).write)(config, &mut document);
    document
}

/// Writes the names of a classifier's labels, from which transformers derives their number.
fn write_labels(head: OutputHead, document: &mut Value) {
    let names: &[&str] = match head {
        OutputHead::Vocabulary => return,
        OutputHead::Sequence => &["LABEL_0"],
        OutputHead::Tokens => &["LABEL_0", "LABEL_1"],
    };
    document["num_labels"] = names.len().into();
    document["id2label"] = names.iter().enumerate().map(|(id, name)| (id.to_string(), json!(name))).collect();
    document["label2id"] =
        names.iter().enumerate().map(|(id, name)| ((*name).to_owned(), json!(id))).collect();
    // A trained model is written, which needs no key-value cache.
    document["use_cache"] = false.into();
}

/// Rotary embedding that is written for a model without any rotated layer.
const PLAIN: RopeConfig = RopeConfig { theta: 10_000.0, scaling: RopeScaling::None };

fn activation(activation: HiddenActivation) -> &'static str {
    match activation {
        HiddenActivation::Silu => "silu",
        HiddenActivation::GeluTanh => "gelu_pytorch_tanh",
        HiddenActivation::Gelu => "gelu",
    }
}

/// Writes ending tokens as one id, a list, or null.
pub(crate) fn eos(ids: &[u32]) -> Value {
    match ids {
        [] => Value::Null,
        [id] => (*id).into(),
        ids => ids.into(),
    }
}
