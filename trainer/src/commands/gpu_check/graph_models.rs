//! Repeats the check `graphs` for further model families, with long prompts that are prefilled in small
//! chunks, so that the decoding batch grows and shrinks.
//!
//! Initial weights have biases of zero, norm weights of one and adapters of zero, which would hide a kernel
//! that omits them. This check gives all of them other values.

use rlt_api::spec::{LoraSpec, Precision, QuantizationSpec};
use rlt_decoder::{Decoder, LoadOptions, Weights};
use rlt_engine::EngineOptions;
use rlt_models::ModelConfig;
use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

use super::graphs::{Load, compare};
use super::{Failure, Report, shapes};

/// A model of the check.
struct Variant {
    name: &'static str,
    /// Content of `config.json`.
    document: Value,
    quantization: Option<QuantizationSpec>,
    /// Whether the model has a LoRA adapter that is not merged into its weights.
    has_adapter: bool,
}

/// Checks every variant.
pub(super) fn check(report: &mut Report<'_>) -> Result<(), Failure> {
    let _no_grad = tch::no_grad_guard();
    let load = Load {
        num_requests: shapes::on_device(12, 3),
        num_samples: 2,
        prompt_lens: shapes::on_device([300, 401, 67], [20, 41, 7]),
    };
    for variant in variants() {
        let options = EngineOptions {
            max_num_seqs: shapes::on_device(16, 4),
            max_num_batched_tokens: shapes::on_device(512, 24),
            merge_lora: false,
            ..EngineOptions::default()
        };
        let named = &mut |finding: super::Finding| report(finding.with([("model", json!(variant.name))]));
        compare(|device, kind| variant.decoder(device, kind), load, &options, named)?;
    }
    Ok(())
}

fn variants() -> [Variant; 6] {
    let dense = |name, document| Variant { name, document, quantization: None, has_adapter: false };
    let [qwen2, llama] =
        ["qwen2", "llama"].map(|family| document(family, shapes::on_device([896, 14, 2, 64], TINY)));
    [
        dense("qwen2 with biases", qwen2.clone()),
        dense("qwen3", document("qwen3", shapes::on_device([256, 8, 2, 128], TINY))),
        dense("gemma", document("gemma", shapes::on_device([256, 4, 1, 256], TINY))),
        dense("mixture of experts", document("qwen3_moe", shapes::on_device([256, 4, 2, 64], TINY))),
        Variant { quantization: Some(nf4()), ..dense("nf4", qwen2) },
        Variant { has_adapter: true, ..dense("unmerged adapter", llama) },
    ]
}

fn nf4() -> QuantizationSpec {
    QuantizationSpec { double_quantization: true, ..QuantizationSpec::default() }
}

/// Hidden size, query heads, KV heads and head dimension on an emulated device.
const TINY: [i64; 4] = [64, 4, 2, 16];

/// Returns the `config.json` of a model with two layers.
fn document(family: &str, [hidden, heads, kv_heads, head_dim]: [i64; 4]) -> Value {
    let class = match family {
        "qwen2" => "Qwen2ForCausalLM",
        "qwen3" => "Qwen3ForCausalLM",
        "qwen3_moe" => "Qwen3MoeForCausalLM",
        "gemma" => "GemmaForCausalLM",
        _ => "LlamaForCausalLM",
    };
    let mut document = json!({
        "architectures": [class], "model_type": family, "hidden_size": hidden,
        "intermediate_size": 2 * hidden, "num_hidden_layers": 2, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "head_dim": head_dim, "vocab_size": 192,
        "max_position_embeddings": 1024, "rms_norm_eps": 1e-6, "rope_theta": 10_000.0,
        "hidden_act": if family == "gemma" { "gelu_pytorch_tanh" } else { "silu" },
        "tie_word_embeddings": true, "initializer_range": 0.1, "bos_token_id": null, "eos_token_id": null,
        "pad_token_id": null
    });
    if family == "qwen3_moe" {
        document["num_local_experts"] = json!(8);
        document["num_experts_per_tok"] = json!(3);
        document["moe_intermediate_size"] = json!(hidden / 2);
        document["norm_topk_prob"] = json!(true);
        document["decoder_sparse_step"] = json!(1);
        document["mlp_only_layers"] = json!([]);
    }
    document
}

impl Variant {
    fn decoder(&self, device: Device, kind: Kind) -> Result<Decoder, Failure> {
        let precision = if kind == Kind::Float { Precision::Fp32 } else { Precision::Bf16 };
        let config = ModelConfig::from_json(&self.document)?;
        let weights = Weights::random_init(&config, 3).quantized(self.quantization.as_ref(), precision)?;
        let options = LoadOptions { device, param_dtype: kind, compute: kind, ..LoadOptions::default() };
        let mut decoder = Decoder::from_weights(&weights, &options)?;
        let is_constant = |name: &str| name.ends_with("bias") || name.ends_with("norm.weight");
        for (_, values) in decoder.named_parameters().into_iter().filter(|(name, _)| is_constant(name)) {
            add_pattern(&values, 0.04)?;
        }
        if self.has_adapter {
            decoder.attach_lora_spec(&LoraSpec { rank: 4, alpha: 8.0, ..LoraSpec::default() }, 5)?;
            let parameters = decoder.trainable_parameters().into_iter();
            for (_, values) in parameters.filter(|(name, _)| name.contains("lora_B")) {
                add_pattern(&values, 0.02)?;
            }
        }
        Ok(decoder)
    }
}

/// Adds a pattern of values between -5 and 5, multiplied by `size`.
fn add_pattern(values: &Tensor, size: f64) -> Result<(), tch::TchError> {
    let numbers: Vec<f32> = (0..values.numel()).map(|idx| ((idx * 7) % 11) as f32 - 5.0).collect();
    let numbers = Tensor::from_slice(&numbers).f_view_as(values)? * size;
    values.shallow_clone().f_add_(&numbers.to_kind(values.kind()).to_device(values.device())).map(drop)
}
