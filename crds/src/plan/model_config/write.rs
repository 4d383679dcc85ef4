//! From [`ModelConfig`] back to a `config.json` that transformers 4 and 5 read as the same model.

use serde_json::{Value, json};

use super::{Family, HiddenActivation, ModelConfig, RopeScaling};

pub(super) fn to_json(config: &ModelConfig, dtype: &str) -> Value {
    let mut document = json!({
        "architectures": [config.family.architecture()],
        "model_type": config.family.model_type(),
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
        "rope_theta": config.rope_theta,
        "rope_scaling": rope_scaling(config.rope_scaling),
        "tie_word_embeddings": config.tie_word_embeddings,
        "initializer_range": config.initializer_range,
        "attention_dropout": 0.0,
        "bos_token_id": config.bos_token_id,
        "pad_token_id": config.pad_token_id,
        "eos_token_id": eos(&config.eos_token_ids),
        "torch_dtype": dtype,
        "use_cache": true,
    });
    add_family_fields(config, &mut document);
    document
}

fn add_family_fields(config: &ModelConfig, document: &mut Value) {
    match config.family {
        Family::Llama => {
            document["attention_bias"] = config.qkv_bias.into();
            document["mlp_bias"] = config.mlp_bias.into();
        }
        Family::Mistral => {
            document["sliding_window"] = config.layer_windows.first().copied().flatten().into()
        }
        Family::Qwen2 => add_layer_types(config, document),
        Family::Qwen3 => {
            document["attention_bias"] = config.qkv_bias.into();
            add_layer_types(config, document);
        }
        Family::Gemma => {
            document["attention_bias"] = config.qkv_bias.into();
            document["hidden_activation"] = document["hidden_act"].clone();
        }
    }
}

fn add_layer_types(config: &ModelConfig, document: &mut Value) {
    let window = config.layer_windows.iter().flatten().next();
    document["use_sliding_window"] = window.is_some().into();
    document["sliding_window"] = window.copied().into();
    let first = config.layer_windows.iter().position(Option::is_some).unwrap_or(config.num_layers);
    document["max_window_layers"] = first.into();
    let name = |window: &Option<usize>| if window.is_some() { "sliding_attention" } else { "full_attention" };
    document["layer_types"] = config.layer_windows.iter().map(name).collect();
}

fn activation(activation: HiddenActivation) -> &'static str {
    match activation {
        HiddenActivation::Silu => "silu",
        HiddenActivation::GeluTanh => "gelu_pytorch_tanh",
        HiddenActivation::Gelu => "gelu",
    }
}

fn rope_scaling(scaling: RopeScaling) -> Value {
    match scaling {
        RopeScaling::None => Value::Null,
        RopeScaling::Linear { factor } => json!({"rope_type": "linear", "factor": factor}),
        RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_max_position_embeddings,
        } => json!({
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": low_freq_factor,
            "high_freq_factor": high_freq_factor,
            "original_max_position_embeddings": original_max_position_embeddings as u64,
        }),
        RopeScaling::Yarn {
            factor,
            attention_factor,
            beta_fast,
            beta_slow,
            truncate,
            original_max_position_embeddings,
        } => json!({
            "rope_type": "yarn",
            "factor": factor,
            "attention_factor": attention_factor,
            "beta_fast": beta_fast,
            "beta_slow": beta_slow,
            "truncate": truncate,
            "original_max_position_embeddings": original_max_position_embeddings as u64,
        }),
    }
}

fn eos(ids: &[u32]) -> Value {
    match ids {
        [] => Value::Null,
        [id] => (*id).into(),
        ids => ids.into(),
    }
}
