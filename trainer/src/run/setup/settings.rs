//! Settings of the manifest and of the model's folder that several parts of the setup read.

use std::path::Path;

use rlt_api::resolved::{ModelSource, ResolvedOptimizer, ResolvedSpec, TokenizerSource};
use rlt_data::tokenizer::{ConversationDefaults, Tokenizer};
use tch::Kind;

use crate::roles::optim::AdamWOptions;
use crate::run::error::TrainError;

/// Returns the dtype in which the model's folder stores the weights; fp32 for a new model.
pub(crate) fn source_kind(model_dir: Option<&Path>) -> Kind {
    let config = model_dir.and_then(|dir| {
        rlt_files::read_to_string(&dir.join("config.json"), rlt_files::MAX_MODEL_JSON_BYTES).ok()
    });
    let config: serde_json::Value =
        config.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
    // transformers 5 says `dtype`, its predecessors `torch_dtype`.
    match config["dtype"].as_str().or(config["torch_dtype"].as_str()) {
        Some("bfloat16") => Kind::BFloat16,
        Some("float16") => Kind::Half,
        _ => Kind::Float,
    }
}

/// Loads the tokenizer of a job, whose model is in `model_dir`, with the job's settings of conversations.
///
/// # Errors
/// [`TrainError::Tokenizer`], [`TrainError::NoTokenizer`].
pub(crate) fn load_tokenizer(spec: &ResolvedSpec, model_dir: Option<&Path>) -> Result<Tokenizer, TrainError> {
    let new_tower = match &spec.model.source {
        ModelSource::Architecture(architecture) => architecture.vision.as_ref(),
        ModelSource::Path(_) | ModelSource::Hub(_) => None,
    };
    let tokenizer = match (&spec.model.tokenizer, model_dir) {
        (Some(TokenizerSource::Characters(alphabet)), _) => match new_tower {
            None => Tokenizer::characters(alphabet)?,
            Some(_) => Tokenizer::characters_and_images(alphabet)?,
        },
        (Some(TokenizerSource::Path(path)), _) => Tokenizer::load(path.as_ref())?,
        (None, Some(dir)) => Tokenizer::load(dir)?,
        (None, None) => return Err(TrainError::NoTokenizer),
    };
    let tokenizer = match new_tower {
        Some(tower) => tokenizer.with_new_tower(tower)?,
        None => tokenizer,
    };
    let tokenizer = match &spec.model.chat_template {
        Some(template) => tokenizer.with_chat_template(template)?,
        None => tokenizer,
    };
    let variables = spec.data.template_variables.as_ref().and_then(|variables| variables.as_object());
    Ok(tokenizer.with_conversation_defaults(ConversationDefaults {
        system_prompt: spec.data.system_prompt.clone(),
        variables: variables.cloned().unwrap_or_default(),
    }))
}

/// Returns the optimizer's settings, which all roles share.
pub(crate) fn optimizer_options(spec: &ResolvedSpec) -> AdamWOptions {
    let ResolvedOptimizer { betas, weight_decay, .. } = &spec.training.optimizer;
    let lora_b_ratio = spec.model.lora.as_ref().map_or(1.0, |lora| lora.learning_rate_ratio);
    AdamWOptions {
        betas: (betas[0], betas[1]),
        weight_decay: *weight_decay,
        lora_b_ratio,
        ..AdamWOptions::default()
    }
}
