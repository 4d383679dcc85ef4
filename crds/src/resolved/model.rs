//! Model of a job, with its source as an enum.

use serde::Serialize;

use crate::spec::{
    ArchitectureSpec, HubSpec, LoraSpec, ModelSpec, QuantizationSpec, TokenizerSpec, VisionTraining,
};

/// Model with exactly one source of weights.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ResolvedModel {
    /// Source of the weights.
    #[serde(flatten)]
    pub source: ModelSource,
    /// Source of the tokenizer; `None` for the model's own folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<TokenizerSource>,
    /// Chat template that replaces the tokenizer's; `None` to keep it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chat_template: Option<String>,
    /// Folders of adapters that are merged into the weights while these are read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub adapters: Vec<String>,
    /// Settings of the trained adapter; `None` to train all weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lora: Option<LoraSpec>,
    /// Whether the vision tower is trained with all other weights.
    pub vision_tower: VisionTraining,
    /// Quantization of frozen weights; `None` to keep them as stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantization: Option<QuantizationSpec>,
}

/// Source of a model's weights.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ModelSource {
    /// A local folder in Hugging Face format.
    Path(String),
    /// A repository of the Hugging Face hub.
    Hub(HubSpec),
    /// Random weights in a described architecture.
    Architecture(ArchitectureSpec),
}

/// Source of a tokenizer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum TokenizerSource {
    /// A folder with tokenizer.json.
    Path(String),
    /// A character tokenizer: one token for each character of this alphabet.
    Characters(String),
}

impl ResolvedModel {
    pub(super) fn resolve(spec: &ModelSpec) -> Option<Self> {
        let source = match spec {
            ModelSpec { path: Some(path), hub: None, architecture: None, .. } => {
                ModelSource::Path(path.clone())
            }
            ModelSpec { path: None, hub: Some(hub), architecture: None, .. } => ModelSource::Hub(hub.clone()),
            ModelSpec { path: None, hub: None, architecture: Some(architecture), .. } => {
                ModelSource::Architecture(architecture.resolve())
            }
            _ => return None,
        };
        let tokenizer = match &spec.tokenizer {
            None => None,
            Some(TokenizerSpec { path: Some(path), characters: None }) => {
                Some(TokenizerSource::Path(path.clone()))
            }
            Some(TokenizerSpec { path: None, characters: Some(characters) }) => {
                Some(TokenizerSource::Characters(characters.clone()))
            }
            Some(_) => return None,
        };
        Some(Self {
            source,
            tokenizer,
            chat_template: spec.chat_template.clone(),
            adapters: spec.adapters.clone(),
            lora: spec.lora.clone(),
            vision_tower: spec.vision_tower,
            quantization: spec.quantization.clone(),
        })
    }
}

impl ArchitectureSpec {
    /// Number of key and value heads; by default the number of query heads.
    pub fn kv_heads(&self) -> u32 {
        self.num_kv_heads.unwrap_or(self.num_heads)
    }

    /// Width of one head; by default the hidden size divided by the number of heads.
    pub fn head_width(&self) -> u32 {
        self.head_dim.unwrap_or(self.hidden_size / self.num_heads.max(1))
    }

    fn resolve(&self) -> Self {
        Self { num_kv_heads: Some(self.kv_heads()), head_dim: Some(self.head_width()), ..self.clone() }
    }
}
