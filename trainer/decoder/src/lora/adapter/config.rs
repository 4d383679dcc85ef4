//! PEFT's `adapter_config.json`, as it is written for an attached adapter.

use std::collections::BTreeSet;

use rlt_models::OutputHead;
use serde_json::{Value, json};

use super::super::config::LoraConfig;
use super::super::names::stored_name;
use super::super::targets::ModuleMatch;
use crate::decoder::Decoder;

/// Version of PEFT in whose layout adapters are written.
const PEFT_VERSION: &str = "0.21.2";

/// The base model of an adapter, as PEFT names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseModel {
    /// A folder, or an id on the hub.
    pub name_or_path: String,
    /// Commit of an id on the hub.
    pub revision: Option<String>,
}

/// The `target_modules` by which PEFT finds the adapted modules. In a mixture of experts PEFT applies
/// `all-linear` and patterns to every expert, too, so modules are listed there: by their last names if these
/// are unambiguous.
fn saved_targets(decoder: &Decoder, config: &LoraConfig) -> Value {
    if decoder.config.vision.is_some() {
        // A name such as `up_proj` would also match modules of the tower.
        let adapted = decoder.projections().filter(|projection| projection.lora.is_some());
        return adapted.map(|projection| stored_name(&decoder.config, &projection.name)).collect();
    }
    match &config.targets {
        ModuleMatch::Names(names) if names.is_empty() => Value::Null,
        ModuleMatch::Names(names) => json!(names),
        ModuleMatch::AllLinear | ModuleMatch::Pattern(_) if decoder.config.experts.is_some() => {
            let projections = || decoder.layers.iter().flat_map(|layer| &layer.projections);
            let last = |name: &str| name.rsplit('.').next().unwrap_or_default().to_owned();
            let adapted = || projections().filter(|one| one.lora.is_some());
            let kinds: BTreeSet<String> = adapted().map(|one| last(&one.name)).collect();
            let others = projections().filter(|one| one.lora.is_none());
            if others.into_iter().any(|one| kinds.contains(&last(&one.name))) {
                return adapted().map(|one| one.name.clone()).collect();
            }
            json!(kinds)
        }
        ModuleMatch::AllLinear => json!("all-linear"),
        ModuleMatch::Pattern(pattern) => json!(pattern),
    }
}

/// The `modules_to_save` by which PEFT finds the modules that are trained without low-rank matrices.
fn saved_modules(decoder: &Decoder, config: &LoraConfig) -> Vec<String> {
    let head = (decoder.config.head != OutputHead::Vocabulary).then(|| "score".to_owned());
    let is_tied = decoder.config.tie_word_embeddings;
    let names = config.modules_beside().into_iter().filter(|name| !(is_tied && *name == "lm_head"));
    if decoder.config.vision.is_none() {
        return names.map(str::to_owned).chain(head).collect();
    }
    // A name such as `norm` would also match modules of the tower.
    let all = decoder.parts().flat_map(|layer_idx| decoder.saved_by_base(layer_idx).into_keys());
    let module = |name: String| stored_name(&decoder.config, name.strip_suffix(".weight").unwrap_or(&name));
    all.map(module).chain(head).collect()
}

/// The `adapter_config.json` of an adapter.
pub(super) fn adapter_config(
    decoder: &Decoder,
    config: &LoraConfig,
    base_model: Option<&BaseModel>,
) -> Value {
    let head = decoder.config.head;
    let modules = |choice: &ModuleMatch| match choice {
        ModuleMatch::AllLinear => json!("all-linear"),
        ModuleMatch::Names(names) => json!(names),
        ModuleMatch::Pattern(pattern) => json!(pattern),
    };
    let saved = saved_modules(decoder, config);
    // If weights are tied, PEFT trains the embedding, and the head follows it.
    let keeps_tied =
        decoder.config.tie_word_embeddings && saved.iter().any(|name| name.ends_with("embed_tokens"));
    let mut document = json!({
        "peft_type": "LORA",
        "peft_version": PEFT_VERSION,
        "task_type": match head {
            OutputHead::Vocabulary => "CAUSAL_LM",
            OutputHead::Sequence => "SEQ_CLS",
            OutputHead::Tokens => "TOKEN_CLS",
        },
        "modules_to_save": Some(&saved).filter(|names| !names.is_empty()),
        "ensure_weight_tying": keeps_tied,
        "base_model_name_or_path": base_model.map(|base| &base.name_or_path),
        "revision": base_model.and_then(|base| base.revision.as_ref()),
        "r": config.rank,
        "lora_alpha": config.alpha,
        "use_rslora": config.rank_stabilized,
        "lora_dropout": config.dropout,
        "target_modules": saved_targets(decoder, config),
        "exclude_modules": config.exclude.as_ref().map(modules),
        "target_parameters": Some(&config.target_parameters).filter(|names| !names.is_empty()),
        "bias": "none",
        "fan_in_fan_out": false,
        "use_dora": config.dora,
        "init_lora_weights": true,
        "inference_mode": true,
    });
    config.patterns.write(&mut document);
    document
}
