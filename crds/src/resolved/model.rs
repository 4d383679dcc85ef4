//! The model with its source as a choice.

use serde::Serialize;

use crate::spec::{
    ArchitectureSpec, HubSpec, LoraSpec, ModelSpec, QuantizationSpec, TokenizerSpec, VisionTraining,
};

/// The model, its source chosen.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ResolvedModel {
    /// The source of the weights.
    #[serde(flatten)]
    pub source: ModelSource,
    /// The source of the tokenizer; `None` for the model's own folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<TokenizerSource>,
    /// A chat template that replaces the tokenizer's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chat_template: Option<String>,
    /// Folders of adapters that are folded into the weights as these are read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub adapters: Vec<String>,
    /// The adapter; `None` to train all weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lora: Option<LoraSpec>,
    /// Whether the vision tower is trained with all other weights.
    pub vision_tower: VisionTraining,
    /// How frozen weights are quantized; `None` as they are stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantization: Option<QuantizationSpec>,
}

/// The source of the weights.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ModelSource {
    /// A Hugging Face folder.
    Path(String),
    /// The Hugging Face hub.
    Hub(HubSpec),
    /// Random weights.
    Architecture(ArchitectureSpec),
}

/// The source of the tokenizer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum TokenizerSource {
    /// A folder with tokenizer.json.
    Path(String),
    /// One token for each character of an alphabet.
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
    /// Number of key and value heads: as given, else as many as there are query heads.
    pub fn kv_heads(&self) -> u32 {
        self.num_kv_heads.unwrap_or(self.num_heads)
    }

    /// Width of one head: as given, else the hidden size divided by the heads.
    pub fn head_width(&self) -> u32 {
        self.head_dim.unwrap_or(self.hidden_size / self.num_heads.max(1))
    }

    fn resolve(&self) -> Self {
        Self { num_kv_heads: Some(self.kv_heads()), head_dim: Some(self.head_width()), ..self.clone() }
    }
}
