//! Decoder models: loaded from Hugging Face folders or initialized, run on packed tokens, and exported.
//!
//! One decoder implements all families; [`rlt_models::ModelConfig`] holds their differences as data. Each
//! layer is a separate autograd graph: it takes a hidden state, returns one and reads no other layer, so its
//! caller can checkpoint, shard or offload it. Training and rollout run the same
//! [`DecoderLayer::forward_with`] and differ only in the [`Projections`] and the attention that they pass.
//!
//! ```text
//! PackedInput -> Decoder::embed -> DecoderLayer::forward (x layers) -> Decoder::final_norm -> head
//! ```
//! Shapes: t tokens of all sequences, d hidden width, h heads, k key/value heads, v vocabulary; `q_thd` is
//! [tokens, heads, head_dim]. Process groups, losses of algorithms, optimizers and sampling are in packages
//! above this one, and in `rlt-core`.

mod classifier;
mod decoder;
mod error;
mod files;
mod frozen;
mod inputs;
mod layer;
mod load;
mod lora;
mod modules;
mod moe;
mod rank_sharding;
mod saved_modules;
mod segments;
mod tp_sharding;
mod vision;
mod weights;

pub use balance::{RouterLoad, RouterObserver};
pub use base_weight::{BaseWeight, QuantizedWeight};
pub use classifier::Classifier;
pub use decoder::Decoder;
pub use error::ModelError;
pub use expert_lora::ExpertTensor;
pub use experts::{ExpertIds, ExpertProducts, ExpertWeights, RoutedTokens, Router};
pub use export::{Export, ExportOptions};
pub use files::config::read_config;
pub use files::unknown_fields::unknown_fields;
use files::{checkpoint, export, mxfp4, names, quant_state, quantize, random_init};
pub use image_embeddings::ImageEmbeddings;
use inputs::{image_embeddings, latent, packed, products, training_products};
pub use latent::{LatentParts, LatentProducts};
pub use layer::{DecoderLayer, DenseProducts, FeedForward, LayerContext, Projections};
pub use lora::{
    ADAPTED_MODEL, AdapterExport, BaseModel, LoraConfig, LoraError, ModuleMatch, Patterns, peft_names,
};
use modules::{base_weight, norms, ops, parameters, projection, random, rope};
use moe::{balance, expert_lora, experts, routes};
pub use norms::{LayerNorms, Norm};
pub use ops::{activation_of, clamped_activation, gated_activation_packed};
pub use packed::{PackedImages, PackedInput};
pub use parameters::{LoadOptions, NamedTensors, of_ranges};
pub use projection::{Adapter, Dropout, Linear, LoraPair, ProjectionWeights};
pub use rank_sharding::{OwnTokens, RankSharding};
pub use rope::{Frequencies, RopeTables, Ropes};
pub use routes::{Counted, RouteCounter, RouteCounts, RouteLog, RoutesOfCompletion};
pub use tp_sharding::TpSharding;
pub use training_products::TrainingProducts;
pub use vision::{TowerPass, VisionTower};
pub use weights::Weights;

#[cfg(test)]
#[path = "tests/frozen_tests.rs"]
mod frozen_tests;
#[cfg(test)]
#[path = "tests/load_tests.rs"]
mod load_tests;
#[cfg(test)]
#[path = "tests/mutated_tests.rs"]
mod mutated_tests;
#[cfg(test)]
#[path = "tests/quantized_tests.rs"]
mod quantized_tests;
