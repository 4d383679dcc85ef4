//! Fields of `generation_config.json`.
//!
//! Rollouts sample as `spec.rollout` says, whatever this file says, because a policy gradient needs samples
//! of the policy itself. The file's settings are for serving the trained model, so exports contain them.

use super::{Group, Treatment};

/// Fields that `GenerationConfig` reads, with those of earlier releases.
pub(super) const FIELDS: &[Group] = &[
    (Treatment::Obeyed, &["eos_token_id"]),
    (Treatment::Exported, &["bos_token_id", "pad_token_id"]),
    (Treatment::Exported, SETTINGS),
    (
        Treatment::Harmless("it describes the file, and an export is another file"),
        &["_from_model_config", "_commit_hash", "_original_object_hash", "transformers_version"],
    ),
];

/// Settings of `generate`. transformers 4 read them from `config.json`, too.
pub(super) const SETTINGS: &[&str] = &[
    // Tokens.
    "decoder_start_token_id",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "force_bos_token_to_be_generated",
    "suppress_tokens",
    "begin_suppress_tokens",
    "bad_words_ids",
    "force_words_ids",
    "stop_strings",
    // Length.
    "max_length",
    "max_new_tokens",
    "min_length",
    "min_new_tokens",
    "max_time",
    "early_stopping",
    // Sampling and penalties.
    "do_sample",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "top_h",
    "typical_p",
    "epsilon_cutoff",
    "eta_cutoff",
    "repetition_penalty",
    "encoder_repetition_penalty",
    "length_penalty",
    "exponential_decay_length_penalty",
    "diversity_penalty",
    "penalty_alpha",
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
    "renormalize_logits",
    "remove_invalid_values",
    "sequence_bias",
    "token_healing",
    "guidance_scale",
    "watermarking_config",
    // Search.
    "num_beams",
    "num_beam_groups",
    "constraints",
    "dola_layers",
    "low_memory",
    "num_return_sequences",
    // Speculative decoding.
    "use_mtp",
    "is_assistant",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "assistant_confidence_threshold",
    "assistant_early_exit",
    "assistant_lookbehind",
    "assistant_ensemble_weight",
    "target_lookbehind",
    "prompt_lookup_num_tokens",
    "max_matching_ngram_size",
    "speculation_type",
    // Cache, compilation and outputs.
    "use_cache",
    "cache_implementation",
    "cache_config",
    "max_cache_len",
    "return_legacy_cache",
    "prefill_chunk_size",
    "compile_config",
    "disable_compile",
    "continuous_batching_config",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "output_logits",
    "return_dict_in_generate",
];
