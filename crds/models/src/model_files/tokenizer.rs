//! Fields of `tokenizer_config.json` and `special_tokens_map.json`. Exports hold both files unchanged.

use serde_json::Value;

use super::{Group, Supported, Treatment, is_off, lists_alone};

/// Suffix of the names of special tokens. Names with this suffix that are not listed are tokens of the
/// model's own.
pub(super) const SUFFIX: &str = "_token";

/// Special tokens by role, and those without one.
const TOKENS: Group = (
    Treatment::Obeyed,
    &[
        "bos_token",
        "eos_token",
        "unk_token",
        "sep_token",
        "pad_token",
        "cls_token",
        "mask_token",
        "extra_special_tokens",
        "additional_special_tokens",
        "model_specific_special_tokens",
    ],
);

/// Fields of `special_tokens_map.json`.
pub(super) const MAP: &[Group] = &[TOKENS];

/// Fields of `tokenizer_config.json` that the base classes of transformers' tokenizers read, with those of
/// the tokenizer classes of the supported families and of earlier releases.
pub(super) const CONFIG: &[Group] = &[
    TOKENS,
    (Treatment::Obeyed, &["added_tokens_decoder", "add_prefix_space", "chat_template", "fix_mistral_regex"]),
    (
        Treatment::Refused(Supported {
            text: "false, as the tokens that a chat template writes must stay whole",
            includes: is_off,
        }),
        &["split_special_tokens"],
    ),
    (
        Treatment::Refused(Supported {
            text: "[\"tokenizer.json\"], as no other definition is read",
            includes: is_definition_alone,
        }),
        &["fast_tokenizer_files"],
    ),
    (Treatment::Refused(Supported { text: "an empty list", includes: is_off }), &["init_inputs"]),
    (
        Treatment::Refused(Supported { text: "null, as it is an object in memory", includes: is_off }),
        &["post_processor", "tokenizer_object"],
    ),
    (
        Treatment::Harmless("tokenizer.json defines the tokenizer, and says it"),
        &[
            // transformers removes the first two where there is a tokenizer.json.
            "add_bos_token",
            "add_eos_token",
            "add_dummy_prefix_space",
            "prefix_space",
            "legacy",
            "from_slow",
            "use_fast",
            "tokenizer_class",
            "slow_tokenizer_class",
            "backend",
            "byte_fallback",
            "do_lower_case",
            "do_basic_tokenize",
            "never_split",
            "tokenize_chinese_chars",
            "strip_accents",
            "keep_accents",
            "remove_space",
            "trim_offsets",
            "errors",
            "unk_id",
            "vocab",
            "vocab_size",
            "merges",
            "gguf_file",
            "_spm_precompiled_charsmap",
            "sp_model_kwargs",
            "add_special_tokens",
            "use_regex",
        ],
    ),
    (
        Treatment::Harmless("text is never cut or padded, and batches are packed"),
        &[
            "model_max_length",
            "max_len",
            "max_length",
            "max_model_input_sizes",
            "stride",
            "padding",
            "padding_side",
            "pad_to_multiple_of",
            "pad_token_id",
            "pad_token_type_id",
            "pad_token_type",
            "truncation",
            "truncation_side",
            "truncation_strategy",
            "model_input_names",
            "return_tensors",
            "return_token_type_ids",
            "tokenizer_padding",
            "tokenizer_truncation",
            "_json_padding",
            "_json_truncation",
        ],
    ),
    (
        Treatment::Harmless("completions are decoded token by token, without changes of spaces"),
        &[
            "clean_up_tokenization_spaces",
            "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output",
            "spaces_between_special_tokens",
            "decode_with_prefix_space",
        ],
    ),
    (
        Treatment::Harmless("it renders prompts of functions of their own, not conversations"),
        &["grounded_generation_template", "tool_use_template"],
    ),
    (
        Treatment::Harmless("it parses the answers of a served model"),
        &["response_template", "response_schema"],
    ),
    (
        Treatment::Harmless("it describes the files, or the classes that load them"),
        &[
            "name_or_path",
            "tokenizer",
            "tokenizer_file",
            "vocab_file",
            "merges_file",
            "spm_file",
            "added_tokens_file",
            "special_tokens_map_file",
            "files_loaded",
            "auto_map",
            "processor_class",
            "image_processor_type",
            "feature_extractor_type",
            "is_local",
            "local_files_only",
            "trust_remote_code",
            "transformers_version",
            "_commit_hash",
            "device_map",
            "verbose",
            // Read by the templates of Llama 2 before templates were part of the folder.
            "use_default_system_prompt",
        ],
    ),
];

/// Returns whether a list of definitions is `tokenizer.json` alone.
fn is_definition_alone(value: &Value) -> bool {
    lists_alone(value, "tokenizer.json")
}
