//! Upper bounds of the sizes in a configuration: a file from outside must not exhaust memory or overflow a
//! sum before any weight is read. All bounds are far beyond published models.

use super::super::{ModelConfig, ModelConfigError};

/// Largest width, or number of heads, experts or tokens in the vocabulary.
pub(super) const MAX_SIZE: u64 = 1 << 24;
/// Largest number of layers.
pub(super) const MAX_DEPTH: u64 = 10_000;
/// Largest number of tokens in a sequence.
pub(super) const MAX_LENGTH: u64 = 1 << 40;
/// Largest number of parameters of a model.
const MAX_PARAMETERS: f64 = 1e15;

/// Refuses a model with more parameters than [`MAX_PARAMETERS`], so that counts cannot overflow.
///
/// # Errors
/// [`ModelConfigError::InvalidField`] of the number of layers.
pub(super) fn check_total(config: &ModelConfig) -> Result<(), ModelConfigError> {
    let total = num_parameters(config);
    if total <= MAX_PARAMETERS {
        return Ok(());
    }
    Err(ModelConfigError::InvalidField {
        field: "num_hidden_layers".to_owned(),
        expected: format!("sizes of at most {MAX_PARAMETERS:e} parameters together"),
        got: format!("{} layers of {total:.1e} parameters", config.num_layers),
    })
}

/// Upper bound of the number of parameters, in floating point so that it cannot overflow.
fn num_parameters(config: &ModelConfig) -> f64 {
    let [hidden, heads, kv_heads] = [config.hidden_size, config.num_heads, config.num_kv_heads].map(wide);
    let latent = config.latent.as_ref().map_or(0.0, |latent| {
        let head = wide(latent.nope_dim) + wide(latent.rope_dim) + wide(latent.value_dim);
        let ranks = latent.query_rank.map_or(hidden, wide) + wide(latent.rank) + wide(latent.rope_dim);
        (hidden + heads * head) * ranks
    });
    let attention = 2.0 * hidden * (heads + kv_heads) * wide(config.head_dim) + latent;
    let experts = config.experts.as_ref().map_or(0.0, |experts| {
        let shared = experts.shared_intermediate_size.map_or(0.0, wide);
        wide(experts.num_experts) * (wide(experts.intermediate_size) + 1.0) + shared
    });
    let feed_forward = 3.0 * hidden * (wide(config.intermediate_size) + experts);
    let tower = config.vision.as_ref().map_or(0.0, |vision| {
        let width = wide(vision.hidden_size);
        wide(vision.depth) * width * (4.0 * width + 3.0 * wide(vision.intermediate_size))
    });
    2.0 * wide(config.vocab_size) * hidden + wide(config.num_layers) * (attention + feed_forward) + tower
}

fn wide(size: usize) -> f64 {
    size as f64
}
