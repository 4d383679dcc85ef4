//! Models of the checks, initialized from a seed, and sizes of their work: real shapes on a GPU, tiny ones on
//! an emulated device.

use rlt_models::ModelConfig;
use serde_json::{Value, json};

use super::{Failure, is_stand_in};

/// Configuration of the 135M-parameter Llama that benchmarks share.
const LLAMA_135M: &str = include_str!("../../../benches/rollout/model.json");

/// Model size of a GRPO step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    /// 0.5B parameters, in the shape of Qwen2.5.
    Small,
    /// 1.5B parameters, in the shape of Qwen2.5.
    Large,
}

impl Size {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Small => "0.5B",
            Self::Large => "1.5B",
        }
    }

    /// Returns the model as a `config.json`, which the peer reads as well.
    pub(super) fn document(self) -> Value {
        if is_stand_in() {
            return tiny();
        }
        let [hidden, intermediate, layers, heads] = match self {
            Self::Small => [896, 4864, 24, 14],
            Self::Large => [1536, 8960, 28, 12],
        };
        json!({
            "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": hidden,
            "intermediate_size": intermediate, "num_hidden_layers": layers, "num_attention_heads": heads,
            "num_key_value_heads": 2, "vocab_size": 151_936, "max_position_embeddings": 32_768,
            "rms_norm_eps": 1e-6, "rope_theta": 1e6, "hidden_act": "silu", "tie_word_embeddings": true,
            "initializer_range": 0.02, "bos_token_id": null, "eos_token_id": null, "pad_token_id": null
        })
    }
}

/// Returns the `config.json` of a model of 0.6B parameters, in the shape of Qwen3; on an emulated device that
/// of the tiny model.
pub(super) fn qwen3_600m() -> Value {
    if is_stand_in() {
        return tiny();
    }
    json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 1024,
        "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_936, "max_position_embeddings": 40_960,
        "rms_norm_eps": 1e-6, "rope_theta": 1e6, "hidden_act": "silu", "tie_word_embeddings": true,
        "initializer_range": 0.02, "bos_token_id": null, "eos_token_id": null, "pad_token_id": null
    })
}

/// Returns the configuration of the model for the checks of decoding and updating.
pub(super) fn llama_135m() -> Result<ModelConfig, Failure> {
    config(&if is_stand_in() { tiny() } else { serde_json::from_str(LLAMA_135M)? })
}

/// Returns the configuration of [`llama_135m`] with fewer layers; the tiny model of an emulated device has
/// two.
pub(super) fn llama_135m_with_layers(num_layers: u32) -> Result<ModelConfig, Failure> {
    if is_stand_in() {
        return llama_135m();
    }
    let mut document: Value = serde_json::from_str(LLAMA_135M)?;
    document["num_hidden_layers"] = json!(num_layers);
    config(&document)
}

/// Returns the `config.json` of a tiny model that still has several layers, heads and key/value heads.
pub(super) fn tiny() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
        "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "vocab_size": 160, "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10_000.0,
        "hidden_act": "silu", "tie_word_embeddings": true, "initializer_range": 0.2, "bos_token_id": null,
        "eos_token_id": null, "pad_token_id": null
    })
}

pub(super) fn config(document: &Value) -> Result<ModelConfig, Failure> {
    Ok(ModelConfig::from_json(document)?)
}

/// Returns `full` on a GPU, `tiny` on an emulated device in CPU memory.
pub(super) fn on_device<T>(full: T, tiny: T) -> T {
    if is_stand_in() { tiny } else { full }
}
