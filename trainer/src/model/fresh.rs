//! Weights for a model that was never trained.

use rlt_api::plan::model_config::ModelConfig;
use tch::Tensor;

use super::error::ModelError;
use super::load::WeightSource;
use super::random::TensorRandom;

/// Weights as transformers initialises them: normal with the configuration's `initializer_range`, biases zero, norms
/// the identity.
pub(super) struct FreshWeights<'a> {
    pub(super) config: &'a ModelConfig,
    pub(super) seed: u64,
}

impl WeightSource for FreshWeights<'_> {
    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor, ModelError> {
        let num = shape.iter().product();
        let values = if name.ends_with(".bias") {
            vec![0.0; num]
        } else if name.ends_with("norm.weight") {
            vec![(1.0 - self.config.norm_offset) as f32; num]
        } else {
            TensorRandom::new(self.seed, name).normal(num, self.config.initializer_range)
        };
        let shape: Vec<i64> = shape.iter().map(|dim| *dim as i64).collect();
        Ok(Tensor::from_slice(&values).reshape(shape))
    }
}
