//! Fields of `config.json` and of the objects in it: those of `PreTrainedConfig` and of the configuration
//! classes of all supported families.
//!
//! A family obeys a field if its class in transformers reads it. Other families ignore it, as their classes
//! do.

use serde_json::Value;

use super::generation::SETTINGS;
use super::{Group, Supported, Treatment, is_off, lists_alone};

/// Reason of fields that say how transformers runs a model.
const HOW_IT_RUNS: &str = "it says how transformers runs the model, or what it returns";

/// Fields of a model, and of its text model in `text_config`.
pub(super) const FIELDS: &[Group] = &[
    (
        Treatment::Obeyed,
        &[
            // Family, parts and sizes.
            "architectures",
            "model_type",
            "text_config",
            "vision_config",
            "quantization_config",
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "max_position_embeddings",
            "tie_word_embeddings",
            "initializer_range",
            // Tokens.
            "bos_token_id",
            "eos_token_id",
            "pad_token_id",
            "image_token_id",
            "video_token_id",
            "vision_start_token_id",
            "vision_end_token_id",
            // Positions.
            "rope_theta",
            "rope_scaling",
            "rope_parameters",
            "rope_local_base_freq",
            "rope_interleave",
            "partial_rotary_factor",
            "original_max_position_embeddings",
            "no_rope_layers",
            "no_rope_layer_interval",
            // Attention.
            "layer_types",
            "sliding_window",
            "use_sliding_window",
            "sliding_window_pattern",
            "max_window_layers",
            "attention_bias",
            "attention_out_bias",
            "qkv_bias",
            "use_qk_norm",
            "query_pre_attn_scalar",
            "attention_multiplier",
            "attn_logit_softcapping",
            "q_lora_rank",
            "kv_lora_rank",
            "qk_nope_head_dim",
            "qk_rope_head_dim",
            "v_head_dim",
            // Feed-forward blocks, norms, scales.
            "hidden_act",
            "hidden_activation",
            "mlp_bias",
            "use_bias",
            "swiglu_limit",
            "rms_norm_eps",
            "layer_norm_eps",
            "embedding_multiplier",
            "residual_multiplier",
            "logits_scaling",
            "logit_scale",
            "final_logit_softcapping",
            "embd_pdrop",
            "resid_pdrop",
            // Experts.
            "num_experts",
            "num_local_experts",
            "n_routed_experts",
            "n_shared_experts",
            "num_experts_per_tok",
            "moe_intermediate_size",
            "shared_expert_intermediate_size",
            "norm_topk_prob",
            "decoder_sparse_step",
            "mlp_only_layers",
            "first_k_dense_replace",
            "moe_layer_freq",
            "routed_scaling_factor",
            "n_group",
            "topk_group",
            "topk_method",
            "router_aux_loss_coef",
            "router_jitter_noise",
        ],
    ),
    (
        Treatment::Refused(Supported { text: "false", includes: is_off }),
        &["use_bidirectional_attention", "is_encoder_decoder", "add_cross_attention"],
    ),
    (
        Treatment::Refused(Supported { text: "true", includes: is_true }),
        // If false, attention would not be causal, and the head of a token classifier would have no bias.
        &["is_causal", "token_classification_bias"],
    ),
    (
        Treatment::Refused(Supported { text: "the same fields for all layers", includes: is_off }),
        &["per_layer_config", "_heterogeneity_spec", "pruned_heads"],
    ),
    (
        Treatment::Refused(Supported {
            text: "0 or null, as every layer caches the keys and values of all its tokens",
            includes: is_zero,
        }),
        &["attention_chunk_size", "num_kv_shared_layers"],
    ),
    (
        Treatment::Refused(Supported {
            text: "[\"config.json\"], as no other configuration is read",
            includes: is_configuration_alone,
        }),
        &["configuration_files"],
    ),
    (Treatment::Refused(Supported { text: "1.702", includes: is_swiglu_alpha }), &["swiglu_alpha"]),
    (
        Treatment::Harmless("the dtype of stored weights is in the headers of their files"),
        &["dtype", "torch_dtype", "use_bfloat16"],
    ),
    (
        Treatment::Harmless("an update computes without the model's dropout, to see the policy that sampled"),
        &[
            "attention_dropout",
            "residual_dropout",
            "resid_dropout",
            "embd_dropout",
            "hidden_dropout",
            "classifier_dropout",
            "classifier_dropout_prob",
        ],
    ),
    (
        Treatment::Harmless("the head and its labels follow from the class in architectures"),
        &["id2label", "label2id", "num_labels", "problem_type", "finetuning_task", "task_specific_params"],
    ),
    (
        Treatment::Harmless("it follows from other fields, or the class of the family has one value for it"),
        &["qk_head_dim", "_sliding_window_pattern", "scoring_func", "is_decoder", "tie_encoder_decoder"],
    ),
    (
        Treatment::Harmless("layers that predict further tokens are not loaded"),
        &[
            "num_nextn_predict_layers",
            "num_mtp_layers",
            "mtp_layer_types",
            "mtp_mlp_layer_types",
            "mtp_per_layer_config",
            "mtp_hidden_states_first",
            "chain_hidden_post_norm",
            "logits_mup_width_multiplier",
            "unpadded_vocab_size",
        ],
    ),
    (
        Treatment::Harmless("no layer of a supported family reads it"),
        &["mlp_layer_types", "number_of_conv_states"],
    ),
    (
        Treatment::Harmless("initializer_range has priority, and every family has a value for it"),
        &["init_std", "initializer_factor"],
    ),
    (
        Treatment::Harmless(
            "OpenAI's own code reads it; transformers reads num_experts_per_tok and rope_scaling",
        ),
        &["experts_per_token", "initial_context_length"],
    ),
    (
        Treatment::Harmless("videos are not read, and the tower of Gemma 3 is left out"),
        &[
            "vision_token_id",
            "mm_tokens_per_image",
            "image_token_index",
            "boi_token_index",
            "eoi_token_index",
            "boi_token_id",
            "eoi_token_id",
        ],
    ),
    (
        Treatment::Harmless(HOW_IT_RUNS),
        &[
            "return_dict",
            "use_return_dict",
            "output_router_logits",
            "chunk_size_feed_forward",
            "torchscript",
            "tf_legacy_loss",
            "pretraining_tp",
            "ep_size",
            "attn_implementation",
            "_attn_implementation",
            "_attn_implementation_internal",
            "_attn_implementation_autoset",
            "_attn_was_changed",
            "experts_implementation",
            "_experts_implementation",
            "_experts_implementation_internal",
            "_is_quantized",
            "fusion_config",
            "distributed_config",
            "allow_global_per_layer_attribute_access",
            "serialize_explicit_per_layer_config",
            "gradient_checkpointing",
            "cross_attention_hidden_size",
            "aux_loss_alpha",
            "seq_aux",
            "prefix",
            "sep_token_id",
        ],
    ),
    (Treatment::Harmless("transformers 5 reads it from generation_config.json alone"), SETTINGS),
    (
        Treatment::Harmless("it describes the file, or the program that wrote it"),
        &[
            "transformers_version",
            "transformers_weights",
            "name_or_path",
            "_name_or_path",
            "_commit_hash",
            "auto_map",
            "tokenizer_class",
            "unsloth_fixed",
            "unsloth_version",
        ],
    ),
];

/// Fields of a tower in `vision_config` besides those that a text model has, too.
const VISION: &[Group] = &[
    (
        Treatment::Obeyed,
        &[
            "depth",
            "num_heads",
            "embed_dim",
            "mlp_ratio",
            "out_hidden_size",
            "in_channels",
            "patch_size",
            "temporal_patch_size",
            "spatial_merge_size",
            "window_size",
            "fullatt_block_indexes",
            "num_position_embeddings",
            "deepstack_visual_indexes",
        ],
    ),
    (
        Treatment::Harmless("transformers does not read it in the towers that are supported"),
        &["in_chans", "spatial_patch_size", "tokens_per_second", "image_size", "num_channels"],
    ),
    (Treatment::Harmless("the tower of Gemma 3 is left out"), &["vision_use_head", "projection_dim"]),
];

/// Fields of a rotary embedding.
const ROPE: &[Group] = &[
    (
        Treatment::Obeyed,
        &[
            "rope_type",
            "type",
            "rope_theta",
            "factor",
            "attention_factor",
            "beta_fast",
            "beta_slow",
            "truncate",
            "mscale",
            "mscale_all_dim",
            "low_freq_factor",
            "high_freq_factor",
            "short_factor",
            "long_factor",
            "original_max_position_embeddings",
            "partial_rotary_factor",
            "mrope_section",
            "mrope_interleaved",
            "full_attention",
            "sliding_attention",
        ],
    ),
    (Treatment::Harmless("it describes how the model was trained"), &["finetuned"]),
];

/// Fields of bitsandbytes, and of MXFP4.
const QUANTIZATION: &[Group] = &[
    (
        Treatment::Obeyed,
        &[
            "quant_method",
            "load_in_4bit",
            "load_in_8bit",
            "bnb_4bit_quant_type",
            "bnb_4bit_use_double_quant",
            "llm_int8_skip_modules",
            "llm_int8_has_fp16_weight",
        ],
    ),
    (
        Treatment::Harmless("weights are read into the job's own layout and computed in its precision"),
        &[
            "_load_in_4bit",
            "_load_in_8bit",
            "bnb_4bit_compute_dtype",
            "bnb_4bit_quant_storage",
            "llm_int8_enable_fp32_cpu_offload",
            "llm_int8_threshold",
            "modules_to_not_convert",
            "dequantize",
        ],
    ),
];

/// Returns the tables of the object in `field`; `None` for a field whose content is read as a whole.
pub(super) fn tables_of(field: &str) -> Option<&'static [&'static [Group]]> {
    match field {
        "text_config" => Some(&[FIELDS]),
        "vision_config" => Some(&[VISION, FIELDS]),
        "rope_parameters" | "rope_scaling" | "full_attention" | "sliding_attention" => Some(&[ROPE]),
        "quantization_config" => Some(&[QUANTIZATION]),
        _ => None,
    }
}

/// Returns whether a value is true.
fn is_true(value: &Value) -> bool {
    value.as_bool() == Some(true)
}

/// Returns whether a value is 0.
fn is_zero(value: &Value) -> bool {
    value.as_u64() == Some(0)
}

/// Returns whether a list of configurations is `config.json` alone.
fn is_configuration_alone(value: &Value) -> bool {
    lists_alone(value, "config.json")
}

/// Returns whether a value is the sigmoid's factor in GPT-OSS.
fn is_swiglu_alpha(value: &Value) -> bool {
    value.as_f64() == Some(1.702)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// The sources of the parser, without tests and these tables.
    fn sources(dir: &Path) -> String {
        let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        let texts = entries.map(|path| {
            let name = path.file_name().unwrap().to_string_lossy();
            let is_left_out = name.contains("tests") || name.starts_with("model_files");
            match (is_left_out, path.is_dir()) {
                (true, _) => String::new(),
                (false, true) => sources(&path),
                (false, false) => fs::read_to_string(&path).unwrap(),
            }
        });
        texts.collect()
    }

    #[test]
    fn every_field_that_is_obeyed_is_named_by_the_parser() {
        let text = sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
        for (treatment, names) in [FIELDS, VISION, ROPE, QUANTIZATION].into_iter().flatten() {
            for name in names.iter().filter(|_| matches!(treatment, Treatment::Obeyed)) {
                assert!(text.contains(&format!("\"{name}\"")), "{name}");
            }
        }
    }
}
