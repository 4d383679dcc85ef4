//! Reading of an adapter's files in PEFT's layout: `adapter_config.json`, with checks that an adapter that a
//! job continues agrees with the job, and the file with the matrices.

use std::path::Path;

use rlt_api::spec::{DropoutPosition, LoraInit, VlmLora};
use serde_json::Value;

use super::config::LoraConfig;
use super::error::LoraError;
use super::names::{ADAPTED_MODEL, CONFIG_FILE, WEIGHTS_FILE, own_name};
use super::patterns::Patterns;
use super::targets::ModuleMatch;
use crate::checkpoint::{WeightFiles, read_json};
use crate::names::is_of_tower;

/// Fields of PEFT that are read. Every other field that is set must be one of [`INERT`]: settings that change
/// what an adapter computes, such as `use_qalora`, are refused by their names, new ones included.
const READ: [&str; 18] = [
    "peft_type",
    "bias",
    "r",
    "lora_alpha",
    "lora_dropout",
    "use_rslora",
    "use_dora",
    "init_lora_weights",
    "target_modules",
    "target_parameters",
    "exclude_modules",
    "modules_to_save",
    "ensure_weight_tying",
    "rank_pattern",
    "alpha_pattern",
    "base_model_name_or_path",
    "revision",
    "peft_version",
];

/// Fields of PEFT that do not change what an adapter computes.
const INERT: [&str; 13] = [
    "task_type",
    "auto_mapping",
    "inference_mode",
    "runtime_config",
    // Settings of the initialization.
    "corda_config",
    "eva_config",
    "loftq_config",
    "lora_ga_config",
    // Without effect unless `layers_to_transform`, `use_qalora` or Megatron's layers are used.
    "layers_pattern",
    "qalora_group_size",
    "megatron_config",
    "megatron_core",
    // Of PEFT before 0.3: whether the matrices are merged for inference.
    "merge_weights",
];

/// Initializations of PEFT that leave the weights of the base model as they are. The others (PiSSA, OLoRA,
/// CorDA, LoRA-GA, LoftQ) replace them by a residual each time PEFT loads the adapter.
const INITS_WITHOUT_RESIDUAL: [&str; 3] = ["gaussian", "eva", "orthogonal"];

/// Reads the file `adapter_config.json`. Refuses settings that would change results and are not implemented,
/// by their names.
pub(super) fn read_adapter_config(dir: &Path) -> Result<LoraConfig, LoraError> {
    let path = dir.join(CONFIG_FILE);
    let document = read_json(&path)?;
    let bad = |field: &str, expected: &str| LoraError::BadConfig {
        path: path.clone(),
        field: field.to_owned(),
        expected: expected.to_owned(),
        got: document.get(field).map_or_else(|| "nothing".to_owned(), Value::to_string),
    };
    if document["peft_type"] != "LORA" {
        return Err(bad("peft_type", "\"LORA\""));
    }
    if document.get("bias").is_some_and(|bias| bias != "none") {
        return Err(bad("bias", "\"none\""));
    }
    let mut fields = document.as_object().into_iter().flatten();
    let is_known = |field: &str| READ.contains(&field) || INERT.contains(&field);
    if let Some((field, _)) = fields.find(|(field, value)| is_set(value) && !is_known(field)) {
        return Err(bad(field, "nothing, as it is not supported"));
    }
    if let Some(init) = document["init_lora_weights"].as_str()
        && !INITS_WITHOUT_RESIDUAL.contains(&init)
    {
        return Err(bad(
            "init_lora_weights",
            "true, false, \"gaussian\", \"eva\" or \"orthogonal\", as others change the base model: save the adapter \
             by PEFT's save_pretrained with path_initial_model_for_weight_conversion, which makes it a plain one",
        ));
    }
    let modules = |field: &str| module_match(&document[field]).map_err(|expected| bad(field, expected));
    let patterns = Patterns::read(&document).map_err(|(field, expected)| bad(field, expected))?;
    Ok(LoraConfig {
        rank: document["r"].as_u64().ok_or_else(|| bad("r", "an integer above 0"))? as usize,
        alpha: document["lora_alpha"].as_f64().ok_or_else(|| bad("lora_alpha", "a number"))?,
        rank_stabilized: document["use_rslora"].as_bool().unwrap_or(false),
        parts: VlmLora::default(),
        targets: match modules("target_modules")? {
            Some(targets) => targets,
            // Only experts are adapted.
            None if is_set(&document["target_parameters"]) => ModuleMatch::Names(Vec::new()),
            None => return Err(bad("target_modules", "names or a pattern")),
        },
        target_parameters: match module_match(&document["target_parameters"]) {
            Ok(Some(ModuleMatch::Names(names))) => names,
            Ok(None) => Vec::new(),
            _ => return Err(bad("target_parameters", "a list of names, or null")),
        },
        exclude: modules("exclude_modules")?,
        dropout: document["lora_dropout"].as_f64().unwrap_or(0.0),
        init: LoraInit::Peft,
        patterns,
        dora: document["use_dora"].as_bool().unwrap_or(false),
        dropout_position: DropoutPosition::Before,
        modules_to_save: match module_match(&document["modules_to_save"]) {
            Ok(Some(ModuleMatch::Names(names))) => names,
            Ok(None) => Vec::new(),
            _ => return Err(bad("modules_to_save", "a list of names, or null")),
        },
    })
}

fn is_set(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::Array(items) => !items.is_empty(),
        Value::Object(entries) => !entries.is_empty(),
        _ => true,
    }
}

fn module_match(value: &Value) -> Result<Option<ModuleMatch>, &'static str> {
    const EXPECTED: &str = "a list of names, a pattern, or null";
    match value {
        Value::Null => Ok(None),
        Value::String(name) if name.eq_ignore_ascii_case("all-linear") => Ok(Some(ModuleMatch::AllLinear)),
        Value::String(pattern) => Ok(Some(ModuleMatch::Pattern(pattern.clone()))),
        Value::Array(items) if items.is_empty() => Ok(None),
        Value::Array(items) => {
            let names = items.iter().map(|item| item.as_str().map(own_name));
            Ok(Some(ModuleMatch::Names(names.collect::<Option<_>>().ok_or(EXPECTED)?)))
        }
        _ => Err(EXPECTED),
    }
}

/// Reads the stored configuration of the adapter in `dir`, which a job with `config` continues. Both must use
/// DoRA or neither, and ranks and scalings must be the same unless it `is_resized`.
pub(super) fn continued(dir: &Path, config: &LoraConfig, is_resized: bool) -> Result<LoraConfig, LoraError> {
    let stored = read_adapter_config(dir)?;
    let disagree = |field: &str, expected: String, got: String| LoraError::BadConfig {
        path: dir.join(CONFIG_FILE),
        field: field.to_owned(),
        expected,
        got,
    };
    // A vision tower that the model lacks is reported elsewhere.
    if let Some(parts) = adapted_parts(dir)?.filter(|parts| *parts != config.parts) {
        return Err(disagree(
            "target_modules",
            format!("modules of {:?} (vlmLora)", config.parts),
            format!("of {parts:?}"),
        ));
    }
    if stored.dora != config.dora {
        return Err(disagree("use_dora", config.dora.to_string(), stored.dora.to_string()));
    }
    if is_resized {
        return Ok(stored);
    }
    if stored.rank != config.rank {
        return Err(disagree("r", config.rank.to_string(), stored.rank.to_string()));
    }
    if stored.scaling() != config.scaling() {
        let scaling = |config: &LoraConfig| format!("a scaling of {}", config.scaling());
        return Err(disagree("lora_alpha", scaling(config), scaling(&stored)));
    }
    if stored.modules_beside() != config.modules_beside() {
        let names = |config: &LoraConfig| format!("{:?}", config.modules_beside());
        return Err(disagree("modules_to_save", names(config), names(&stored)));
    }
    if let Some((field, [expected, got])) = config.patterns.first_difference(&stored.patterns) {
        return Err(disagree(field, expected, got));
    }
    Ok(stored)
}

/// Opens the file with the matrices of the adapter in `dir`.
pub(super) fn open_weights(dir: &Path) -> Result<WeightFiles, LoraError> {
    let mut files = WeightFiles::open_file(&dir.join(WEIGHTS_FILE))?;
    files.rename(own_name);
    Ok(files)
}

/// The parts of a vision-language model whose linear layers the adapter in `dir` adapts; `None` if it adapts
/// none.
pub(super) fn adapted_parts(dir: &Path) -> Result<Option<VlmLora>, LoraError> {
    let files = open_weights(dir)?;
    let is_of_tower = |name: &str| name.strip_prefix(ADAPTED_MODEL).is_some_and(is_of_tower);
    let (mut text, mut vision) = (false, false);
    for name in files.names().filter(|name| name.contains(".lora_")) {
        *(if is_of_tower(name) { &mut vision } else { &mut text }) = true;
    }
    Ok(match (text, vision) {
        (true, true) => Some(VlmLora::Both),
        (false, true) => Some(VlmLora::Vision),
        (true, false) => Some(VlmLora::Text),
        (false, false) => None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(init: &Value) -> Result<LoraConfig, LoraError> {
        read_with("init_lora_weights", init)
    }

    /// Reads an adapter's configuration with a further field.
    fn read_with(field: &str, value: &Value) -> Result<LoraConfig, LoraError> {
        let dir = tempfile::TempDir::new().unwrap();
        let mut document =
            json!({ "peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"] });
        document[field] = value.clone();
        std::fs::write(dir.path().join(CONFIG_FILE), document.to_string()).unwrap();
        read_adapter_config(dir.path())
    }

    /// The fields that PEFT 0.21 writes, from a fixture that it made.
    #[test]
    fn every_field_of_peft_is_read_changes_nothing_or_is_refused() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../tests/fixtures/models/llama/adapter/adapter_config.json"
        );
        let document: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let fields = document.as_object().unwrap().keys().map(String::as_str);
        let others: Vec<&str> =
            fields.filter(|field| !READ.contains(field) && !INERT.contains(field)).collect();
        assert_eq!(
            others,
            [
                "alora_invocation_tokens",
                "arrow_config",
                "fan_in_fan_out",
                "kasa_config",
                "layer_replication",
                "layers_to_transform",
                "lora_bias",
                "monteclora_config",
                "trainable_token_indices",
                "use_bdlora",
                "use_qalora",
                "velora_config",
            ]
        );
        for field in others.into_iter().chain(["of_the_next_release"]) {
            assert!(read_with(field, &Value::Null).is_ok() && read_with(field, &json!(false)).is_ok());
            let error = read_with(field, &json!(true)).unwrap_err().to_string();
            assert!(error.contains(field), "{error}");
        }
        assert!(INERT.into_iter().all(|field| read_with(field, &json!({"a": 1})).is_ok()));
    }

    /// The names of PEFT 0.21, and one that it does not have.
    #[test]
    fn adapters_whose_initialization_changes_the_base_are_refused_by_name() {
        for init in ["pissa", "pissa_niter_16", "olora", "loftq", "corda", "lora_ga", "unknown_init"] {
            let error = read(&json!(init)).unwrap_err().to_string();
            assert!(error.contains("init_lora_weights") && error.contains(init), "{error}");
            assert!(error.contains("path_initial_model_for_weight_conversion"), "{error}");
        }
        for init in
            [json!(true), json!(false), Value::Null, json!("gaussian"), json!("eva"), json!("orthogonal")]
        {
            assert!(read(&init).is_ok(), "{init}");
        }
    }
}
