//! Tests of the tables: each field that transformers reads has one treatment, and refusals and exports follow
//! it.

use serde_json::json;

use super::*;
use crate::{Family, families};

/// Names of the fields that transformers 5.17 reads, by file or object and by model family, tokenizer or
/// method.
fn read_by_transformers() -> Map<String, Value> {
    let fixture = include_str!("../../tests/fixtures/transformers_fields.json");
    let mut fields: Map<String, Value> = serde_json::from_str(fixture).unwrap();
    fields.remove("transformers");
    fields
}

fn content(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

#[test]
fn a_field_is_in_one_group_of_its_file() {
    for table in [config::FIELDS, generation::FIELDS, tokenizer::CONFIG, tokenizer::MAP] {
        let mut names: Vec<&str> = table.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        let num_names = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), num_names);
    }
}

#[test]
fn every_field_that_transformers_reads_is_in_the_table_of_its_file() {
    let mut num_fields = 0;
    for (place, groups) in read_by_transformers() {
        let lists = groups.as_object().unwrap().values();
        let names = lists.flat_map(|names| names.as_array().unwrap()).map(|name| name.as_str().unwrap());
        let fields: Map<String, Value> = names.map(|name| (name.to_owned(), Value::Null)).collect();
        num_fields += fields.len();
        let file = ModelFile::ALL.into_iter().find(|file| file.name() == place);
        let unknown = match file {
            Some(file) => file.unknown_fields(&fields),
            // An object in `config.json`.
            None => ModelFile::Config.unknown_fields(&content(json!({ place.clone(): fields }))),
        };
        assert_eq!(unknown, Vec::<String>::new(), "{place}");
    }
    assert!(num_fields > 350, "{num_fields}");
}

#[test]
fn the_fields_that_transformers_reads_are_those_of_all_supported_families() {
    let fields = read_by_transformers();
    for family in Family::all() {
        // The text model of Gemma 3 has a type of its own.
        let folder = families::definition(family).model_type.trim_end_matches("_text");
        assert!(fields["config.json"][folder].as_array().is_some_and(|names| names.len() > 15), "{folder}");
        assert_eq!(fields["vision_config"][folder].is_array(), family.has_vision(), "{folder}");
        let has_windows =
            fields["config.json"][folder].as_array().unwrap().contains(&json!("sliding_window"));
        assert_eq!(has_windows, families::definition(family).has_windows, "{folder}");
    }
}

/// Fields of openai/gpt-oss-20b, some of which only OpenAI's own code reads.
#[test]
fn a_published_configuration_of_gpt_oss_has_no_field_that_a_run_would_report() {
    let fields = json!({
        "experts_per_token": 4, "initial_context_length": 4096, "num_experts_per_tok": 4, "swiglu_limit": 7.0,
        "num_local_experts": 32, "output_router_logits": false, "router_aux_loss_coef": 0.9,
        "quantization_config": {"modules_to_not_convert": ["lm_head"], "quant_method": "mxfp4"},
        "rope_scaling": {
            "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
            "rope_type": "yarn", "truncate": false
        }
    });
    let fields = content(fields);
    assert_eq!(ModelFile::Config.unknown_fields(&fields), Vec::<String>::new());
    assert_eq!(ModelFile::Config.refused_field(&fields), None);
}

#[test]
fn a_field_of_the_configuration_is_refused_only_with_a_value_that_changes_the_model() {
    let refused = |value: Value| ModelFile::Config.refused_field(&content(value)).map(|field| field.field);
    for (field, on, off) in [
        ("is_causal", json!(false), json!(true)),
        ("token_classification_bias", json!(false), json!(true)),
        ("attention_chunk_size", json!(8192), json!(0)),
        ("num_kv_shared_layers", json!(2), json!(0)),
        ("configuration_files", json!(["config.json", "config.5.0.json"]), json!(["config.json"])),
        ("use_bidirectional_attention", json!(true), json!(false)),
    ] {
        assert_eq!(refused(json!({ field: on })).as_deref(), Some(field));
        assert_eq!(refused(json!({ field: off })), None);
        assert_eq!(refused(json!({ field: null })), None);
    }
}

#[test]
fn a_field_that_changes_tokens_is_refused_with_its_value_unless_it_is_off() {
    let refused = |value: Value| ModelFile::TokenizerConfig.refused_field(&content(value));
    let field = "split_special_tokens";
    let found = refused(json!({ "eos_token": "</s>", field: true })).unwrap();
    assert_eq!((found.field.as_str(), found.got.as_str()), (field, "true"));
    assert!(refused(json!({ field: false })).is_none() && refused(json!({ field: null })).is_none());
    assert!(refused(json!({"fast_tokenizer_files": ["tokenizer.json", "tokenizer.4.0.json"]})).is_some());
    assert!(refused(json!({"fast_tokenizer_files": ["tokenizer.json"], "init_inputs": []})).is_none());
}

#[test]
fn a_field_that_is_in_no_table_is_unknown_but_a_token_of_the_models_own_is_not() {
    let fields = json!({"image_token": "<image>", "of_the_next_release": 1, "padding_side": "left"});
    assert_eq!(ModelFile::TokenizerConfig.unknown_fields(&content(fields)), ["of_the_next_release"]);
    let fields = json!({"bos_token": "<s>", "padding_side": "left"});
    assert_eq!(ModelFile::SpecialTokensMap.unknown_fields(&content(fields)), ["padding_side"]);
    let fields = json!({"image_token": 3, "top_p": 0.8});
    assert_eq!(ModelFile::GenerationConfig.unknown_fields(&content(fields)), ["image_token"]);
}

#[test]
fn exports_hold_all_settings_of_generation_but_not_the_description_of_the_file() {
    let fields = json!({
        "_from_model_config": true, "transformers_version": "5.17.0", "eos_token_id": [1, 2], "top_k": 20,
        "temperature": 0.7, "max_length": null, "of_the_next_release": 1
    });
    let exported = Value::Object(ModelFile::GenerationConfig.exported_fields(&content(fields)));
    assert_eq!(exported, json!({"top_k": 20, "temperature": 0.7, "of_the_next_release": 1}));
}

#[test]
fn unknown_fields_of_objects_in_the_configuration_are_named_with_the_object() {
    let fields = json!({
        "architectures": [], "temperature": 0.7, "new_norm": 1,
        "rope_parameters": {"full_attention": {"rope_type": "default", "new_factor": 2.0}},
        "text_config": {"hidden_size": 4, "new_gate": true, "rope_scaling": {"newer": 1}},
        "vision_config": {"depth": 2, "hidden_act": "silu", "new_patch": 4}
    });
    let expected = [
        "new_norm",
        "rope_parameters.full_attention.new_factor",
        "text_config.new_gate",
        "text_config.rope_scaling.newer",
        "vision_config.new_patch",
    ];
    assert_eq!(ModelFile::Config.unknown_fields(&content(fields)), expected);
}
