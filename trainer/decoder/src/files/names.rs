//! Names of parameters that code refers to, and names of vision-language models' tensors in published files.

use rlt_models::{EMBEDDING_WEIGHT, HEAD_WEIGHT, ModelConfig, SCORE_BIAS, SCORE_WEIGHT, TOWER, VisionBlocks};

/// Name of the embedding.
pub(crate) const EMBEDDING: &str = EMBEDDING_WEIGHT;
/// Name of a head that gives logits of tokens.
pub(crate) const HEAD: &str = HEAD_WEIGHT;
/// Name of a sequence classifier's weight.
pub(crate) const SCORE_HEAD: &str = SCORE_WEIGHT;

/// Whether a weight belongs to a classifier's head.
pub(crate) fn is_label_head(name: &str) -> bool {
    name == SCORE_WEIGHT || name == SCORE_BIAS
}

/// Whether `name` is a module or parameter of the vision tower.
pub(crate) fn is_of_tower(name: &str) -> bool {
    name.starts_with(TOWER)
}

/// The layer index in a parameter's name, an adapter's too: `..layers.<index>..`.
pub(crate) fn layer_idx(name: &str) -> Option<usize> {
    name.split_once(".layers.")?.1.split('.').next()?.parse().ok()
}

/// The name of a tensor in published models: the tower under `visual.`, the text model under `model.`. Since
/// 4.52 transformers calls them `model.visual.` and `model.language_model.` in memory.
pub(crate) fn published_name(name: &str) -> String {
    let renamed = |from: &str, to: &str| name.strip_prefix(from).map(|rest| format!("{to}{rest}"));
    let tower = renamed("model.visual.", TOWER);
    tower.or_else(|| renamed("model.language_model.", "model.")).unwrap_or_else(|| name.to_owned())
}

/// Returns the name of a tensor in the text model, from its name in published files or in those that
/// transformers 5 writes; `None` for tensors of the vision tower and of the projection of its features.
pub(crate) fn text_model_name(name: &str) -> Option<String> {
    const TOWER_PARTS: [&str; 2] = ["vision_tower.", "multi_modal_projector."];
    let within = name.strip_prefix("model.").unwrap_or(name);
    if TOWER_PARTS.iter().any(|part| within.starts_with(part)) {
        return None;
    }
    if let Some(rest) = name.strip_prefix("model.language_model.") {
        return Some(format!("model.{rest}"));
    }
    Some(name.strip_prefix("language_model.").unwrap_or(name).to_owned())
}

/// Returns the name under which a tensor is exported, which is its name in published models of the family.
/// Qwen3-VL was published under transformers' names in memory.
pub(crate) fn stored_name(config: &ModelConfig, name: String) -> String {
    if config.vision.as_ref().is_none_or(|vision| vision.blocks != VisionBlocks::Positioned) {
        return name;
    }
    match name.strip_prefix("model.") {
        Some(rest) => format!("model.language_model.{rest}"),
        None if name.starts_with(TOWER) => format!("model.{name}"),
        None => name,
    }
}
