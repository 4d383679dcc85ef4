//! PEFT's names of an adapter's files and of the modules and matrices in them.

use rlt_models::{ModelConfig, TOWER};

use crate::names::published_name;

/// Name of the file with an adapter's configuration.
pub(super) const CONFIG_FILE: &str = "adapter_config.json";
/// Name of the file with an adapter's matrices.
pub(super) const WEIGHTS_FILE: &str = "adapter_model.safetensors";

/// PEFT's prefix of the names of a model's parameters.
pub const ADAPTED_MODEL: &str = "base_model.model.";

/// PEFT's names of a projection's matrices A and B.
pub fn peft_names(projection: &str) -> [String; 2] {
    ["A", "B"].map(|matrix| format!("{ADAPTED_MODEL}{projection}.lora_{matrix}.weight"))
}

/// PEFT's name of the magnitudes of a projection.
pub(crate) fn magnitudes_name(projection: &str) -> String {
    format!("{ADAPTED_MODEL}{projection}.lora_magnitude_vector")
}

/// Prefix of a text model with a vision tower in transformers' memory.
const LANGUAGE_MODEL: &str = "model.language_model.";
/// Modules of the text model.
const OF_LANGUAGE_MODEL: [&str; 3] = ["layers.", "embed_tokens", "norm"];

/// Prefix of a vision tower in transformers' memory.
const VISION_TOWER: &str = "model.visual.";

/// The name of a module or matrix in PEFT's files, which follow transformers' names in memory.
pub(super) fn stored_name(config: &ModelConfig, name: &str) -> String {
    if config.vision.is_none() {
        return name.to_owned();
    }
    let (start, module) = name.split_at(name.strip_prefix(ADAPTED_MODEL).map_or(0, |_| ADAPTED_MODEL.len()));
    if let Some(of_tower) = module.strip_prefix(TOWER) {
        return format!("{start}{VISION_TOWER}{of_tower}");
    }
    OF_LANGUAGE_MODEL.iter().fold(name.to_owned(), |name, part| {
        name.replace(&format!("model.{part}"), &format!("{LANGUAGE_MODEL}{part}"))
    })
}

/// The name in this program of a module or matrix in PEFT's files, the inverse of [`stored_name`].
pub(super) fn own_name(name: &str) -> String {
    match name.strip_prefix(ADAPTED_MODEL) {
        Some(module) => format!("{ADAPTED_MODEL}{}", published_name(module)),
        None => published_name(name),
    }
}
