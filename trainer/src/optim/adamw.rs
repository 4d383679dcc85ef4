//! AdamW with decoupled weight decay (Loshchilov & Hutter, arXiv:1711.05101), step by step as
//! `torch.optim.AdamW` computes it.

use std::collections::BTreeSet;

use rlt_torch::AdamWStep;
use tch::{Kind, Tensor};

use super::{OptimError, StepOutcome};
use crate::checkpoint::{Checkpoint, CheckpointError};

/// Everything but the learning rate, which comes with each step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWOptions {
    /// Decay rates of the first and the second moment, each in [0, 1).
    pub betas: (f64, f64),
    /// Added to the root of the second moment, > 0.
    pub epsilon: f64,
    /// Each step takes `learning_rate * weight_decay` of a parameter away, independently of its gradient; of norms and
    /// biases nothing, which are told by their names as transformers' `Trainer` tells them.
    pub weight_decay: f64,
}

impl Default for AdamWOptions {
    /// The values of `torch.optim.AdamW`.
    fn default() -> Self {
        Self { betas: (0.9, 0.999), epsilon: 1e-8, weight_decay: 0.01 }
    }
}

/// AdamW over a fixed list of named leaves. Moments are float32 whatever the parameters' kind.
#[derive(Debug)]
pub struct AdamW {
    options: AdamWOptions,
    parameters: Vec<Parameter>,
}

#[derive(Debug)]
struct Parameter {
    name: String,
    leaf: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    /// Whether weight decay takes part of it away.
    decays: bool,
    /// Steps that updated this parameter; one without a gradient is passed over, as in torch.
    num_steps: i64,
}

impl AdamW {
    /// Takes the leaves to train, with zero moments beside each on the same device.
    ///
    /// # Errors
    /// Two parameters share a name, or the moments cannot be allocated.
    pub fn new(parameters: Vec<(String, Tensor)>, options: AdamWOptions) -> Result<Self, OptimError> {
        let mut names = BTreeSet::new();
        if let Some((name, _)) = parameters.iter().find(|(name, _)| !names.insert(name.clone())) {
            return Err(OptimError::DuplicateParameter { name: name.clone() });
        }
        let parameters = parameters.into_iter().map(Parameter::new).collect::<Result<_, _>>()?;
        Ok(Self { options, parameters })
    }

    /// Applies the accumulated gradients. They are scaled together so that their L2 norm is at most
    /// `max_grad_norm`; none clips nothing. They stay until [`clear_gradients`](Self::clear_gradients).
    ///
    /// # Errors
    /// A gradient cannot be read or a parameter not be updated.
    pub fn step(
        &mut self,
        learning_rate: f64,
        max_grad_norm: Option<f64>,
    ) -> Result<StepOutcome, OptimError> {
        self.step_at_norm(self.grad_norm()?, learning_rate, max_grad_norm)
    }

    /// The L2 norm of all gradients together.
    ///
    /// # Errors
    /// A gradient cannot be read.
    pub fn grad_norm(&self) -> Result<f64, OptimError> {
        let gradients: Vec<Tensor> =
            self.parameters.iter().map(|parameter| parameter.leaf.grad()).filter(Tensor::defined).collect();
        rlt_torch::global_norm(&gradients).map_err(|source| OptimError::Norm { source })
    }

    /// [`step`](Self::step) where the leaves are a part of the model, whose gradients together have the norm
    /// `grad_norm`.
    ///
    /// # Errors
    /// A parameter cannot be updated.
    pub fn step_at_norm(
        &mut self,
        grad_norm: f64,
        learning_rate: f64,
        max_grad_norm: Option<f64>,
    ) -> Result<StepOutcome, OptimError> {
        if !grad_norm.is_finite() {
            return Ok(StepOutcome::SkippedNonFinite);
        }
        let scale = max_grad_norm.map_or(1.0, |max| clip_coefficient(grad_norm, max));
        let options = self.options;
        self.parameters
            .iter_mut()
            .try_for_each(|parameter| parameter.step(&options, learning_rate, scale))?;
        Ok(StepOutcome::Applied { grad_norm })
    }

    /// The leaves, by name and in their order. They share memory with the optimizer's.
    pub fn parameters(&self) -> Vec<(String, Tensor)> {
        let named = |parameter: &Parameter| (parameter.name.clone(), parameter.leaf.shallow_clone());
        self.parameters.iter().map(named).collect()
    }

    /// The gradients of all parameters, in their order; a parameter that has none yet gets one of zeros. They share
    /// memory with the leaves'.
    pub fn gradients(&self) -> Vec<Tensor> {
        let of_one = |parameter: &Parameter| {
            if !parameter.leaf.grad().defined() {
                rlt_torch::set_grad(&parameter.leaf, Some(&parameter.leaf.detach().zeros_like()));
            }
            parameter.leaf.grad()
        };
        self.parameters.iter().map(of_one).collect()
    }

    /// Frees every gradient.
    pub fn clear_gradients(&mut self) {
        self.parameters.iter().for_each(|parameter| rlt_torch::set_grad(&parameter.leaf, None));
    }

    /// Forgets moments and counts, as if no step had been taken.
    pub fn reset(&mut self) {
        for parameter in &mut self.parameters {
            let _ = parameter.exp_avg.zero_();
            let _ = parameter.exp_avg_sq.zero_();
            parameter.num_steps = 0;
        }
    }

    /// The moments and the count of steps of every parameter, for a checkpoint: `<name>.exp_avg` and
    /// `<name>.exp_avg_sq`, float32 in the parameter's shape, and `<name>.num_steps`, one int64, each under
    /// `optimizer.`. They share memory with the optimizer.
    pub fn state_tensors(&self) -> Vec<(String, Tensor)> {
        let of_one = |parameter: &Parameter| {
            [
                (parameter.state_name("exp_avg"), parameter.exp_avg.shallow_clone()),
                (parameter.state_name("exp_avg_sq"), parameter.exp_avg_sq.shallow_clone()),
                (parameter.state_name("num_steps"), Tensor::from(parameter.num_steps)),
            ]
        };
        self.parameters.iter().flat_map(of_one).collect()
    }

    /// Takes over the moments and counts that [`state_tensors`](Self::state_tensors) gave to a checkpoint.
    ///
    /// # Errors
    /// The checkpoint lacks a tensor of a parameter, or one has another shape.
    pub fn load(&mut self, checkpoint: &Checkpoint) -> Result<(), CheckpointError> {
        self.load_moments(checkpoint, |_, state_name, moment| checkpoint.load_into(state_name, moment))
    }

    /// [`load`](Self::load) where the leaves are parts of what the checkpoint holds: `load_moment` gets the parameter's
    /// name, the checkpoint's name of a moment, and the moment, in the leaf's shape.
    ///
    /// # Errors
    /// The checkpoint lacks a count, or what `load_moment` fails with.
    pub fn load_moments(
        &mut self,
        checkpoint: &Checkpoint,
        mut load_moment: impl FnMut(&str, &str, &Tensor) -> Result<(), CheckpointError>,
    ) -> Result<(), CheckpointError> {
        self.parameters.iter_mut().try_for_each(|parameter| {
            load_moment(&parameter.name, &parameter.state_name("exp_avg"), &parameter.exp_avg)?;
            load_moment(&parameter.name, &parameter.state_name("exp_avg_sq"), &parameter.exp_avg_sq)?;
            let num_steps = Tensor::from(0i64);
            checkpoint.load_into(&parameter.state_name("num_steps"), &num_steps)?;
            parameter.num_steps = num_steps.int64_value(&[]);
            Ok(())
        })
    }
}

impl Parameter {
    fn new((name, leaf): (String, Tensor)) -> Result<Self, OptimError> {
        let zeros = || {
            Tensor::f_zeros(leaf.size(), (Kind::Float, leaf.device()))
                .map_err(OptimError::tensor("allocate moments of", &name))
        };
        let (exp_avg, exp_avg_sq) = (zeros()?, zeros()?);
        Ok(Self { exp_avg, exp_avg_sq, decays: decays(&name), name, leaf, num_steps: 0 })
    }

    fn state_name(&self, part: &str) -> String {
        format!("optimizer.{}.{part}", self.name)
    }

    /// One update with the gradient times `scale`.
    fn step(&mut self, options: &AdamWOptions, learning_rate: f64, scale: f64) -> Result<(), OptimError> {
        let gradient = self.leaf.grad();
        if !gradient.defined() {
            return Ok(());
        }
        let step = AdamWStep {
            learning_rate,
            betas: options.betas,
            epsilon: options.epsilon,
            weight_decay: if self.decays { options.weight_decay } else { 0.0 },
            grad_scale: scale,
            step: self.num_steps + 1,
        };
        // Both share memory with their original where that is float32 already.
        let wide = |tensor: &Tensor| tensor.f_detach()?.f_to_kind(Kind::Float);
        let (values, gradient) = wide(&self.leaf)
            .and_then(|values| Ok((values, wide(&gradient)?)))
            .map_err(OptimError::tensor("read parameter", &self.name))?;
        self.update(values, &gradient, &step)
            .map_err(|source| OptimError::Step { name: self.name.clone(), source })
    }

    fn update(
        &mut self,
        mut values: Tensor,
        gradient: &Tensor,
        step: &AdamWStep,
    ) -> Result<(), rlt_torch::Error> {
        rlt_torch::adamw_step(&mut values, gradient, &mut self.exp_avg, &mut self.exp_avg_sq, step)?;
        if self.leaf.kind() != Kind::Float {
            tch::no_grad(|| self.leaf.copy_(&values));
        }
        self.num_steps = step.step;
        Ok(())
    }
}

/// Norms scale what passes through them, and biases shift it: neither has a size that could grow out of hand, and a norm at
/// rest is 1 in most families, not 0.
fn decays(name: &str) -> bool {
    let is_spared = |part: &str| {
        part == "bias" || part == "norm" || part.ends_with("_norm") || part.ends_with("layernorm")
    };
    !name.split('.').any(is_spared)
}

/// The factor that brings `grad_norm` down to `max_grad_norm`, at most 1. As `torch.nn.utils.clip_grad_norm_`,
/// the small constant in it included.
fn clip_coefficient(grad_norm: f64, max_grad_norm: f64) -> f64 {
    (max_grad_norm / (grad_norm + 1e-6)).min(1.0)
}

#[cfg(test)]
mod tests {
    use rlt_api::plan::model_config::{ModelConfig, TensorShape};
    use tch::Device;

    use super::*;

    fn leaf(values: &[f32]) -> Tensor {
        Tensor::from_slice(values).set_requires_grad(true)
    }

    fn optimizer(leaf: &Tensor) -> AdamW {
        AdamW::new(vec![("w".into(), leaf.shallow_clone())], AdamWOptions::default()).expect("one parameter")
    }

    fn give_gradient(leaf: &Tensor, gradient: &[f32]) {
        (leaf * Tensor::from_slice(gradient)).sum(Kind::Float).backward();
    }

    fn values(tensor: &Tensor) -> Vec<f32> {
        Vec::try_from(tensor.detach().to_kind(Kind::Float)).expect("float32")
    }

    #[test]
    fn a_non_finite_gradient_changes_nothing() {
        for bad in [f32::NAN, f32::INFINITY] {
            let leaf = leaf(&[1.0, -2.0]);
            let mut optimizer = optimizer(&leaf);
            give_gradient(&leaf, &[0.5, 0.5]);
            optimizer.step(0.1, None).expect("finite");
            let before: Vec<_> = optimizer.state_tensors().iter().map(|(_, tensor)| tensor.copy()).collect();
            let weights = values(&leaf);
            optimizer.clear_gradients();
            give_gradient(&leaf, &[bad, 1.0]);
            assert_eq!(optimizer.step(0.1, Some(1.0)).expect("no error"), StepOutcome::SkippedNonFinite);
            assert_eq!(values(&leaf), weights);
            let after = optimizer.state_tensors();
            assert!(before.iter().zip(&after).all(|(before, (_, after))| before.equal(after)));
        }
    }

    #[test]
    fn the_norm_is_measured_before_clipping() {
        let leaf = leaf(&[0.0, 0.0]);
        let mut optimizer = optimizer(&leaf);
        give_gradient(&leaf, &[3.0, 4.0]);
        let outcome = optimizer.step(0.1, Some(1.0)).expect("finite");
        assert_eq!(outcome, StepOutcome::Applied { grad_norm: 5.0 });
    }

    #[test]
    fn narrow_parameters_have_wide_moments() {
        let leaf = Tensor::ones([3], (Kind::BFloat16, Device::Cpu)).set_requires_grad(true);
        let mut optimizer = optimizer(&leaf);
        (&leaf * 2.0).sum(Kind::BFloat16).backward();
        optimizer.step(0.25, None).expect("finite");
        assert_eq!(leaf.kind(), Kind::BFloat16);
        // The first step moves by the learning rate, and decay takes a hundredth of that: 0.7475 before rounding.
        assert_eq!(values(&leaf), [0.746_093_75; 3]);
        assert!(optimizer.state_tensors()[..2].iter().all(|(_, tensor)| tensor.kind() == Kind::Float));
    }

    /// A step without a gradient is decay alone.
    #[test]
    fn matrices_decay_and_norms_and_biases_do_not() {
        let config = ModelConfig::from_json(&serde_json::json!({
            "architectures": ["Qwen3ForCausalLM"], "vocab_size": 5, "hidden_size": 4, "intermediate_size": 6,
            "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 2,
            "attention_bias": true, "tie_word_embeddings": false,
        }));
        let ones = |shape: &[i64]| Tensor::ones(shape, (Kind::Float, Device::Cpu)).set_requires_grad(true);
        let named = |tensor: TensorShape| {
            let shape: Vec<i64> = tensor.shape.iter().map(|len| *len as i64).collect();
            (tensor.name, ones(&shape))
        };
        let mut leaves: Vec<_> = config.expect("a model").tensors().into_iter().map(named).collect();
        let adapter = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight";
        leaves.extend([(adapter.to_owned(), ones(&[2, 4])), ("critic.value_head.weight".into(), ones(&[4]))]);
        let of = |(name, leaf): &(String, Tensor)| (name.clone(), leaf.shallow_clone());
        let options = AdamWOptions { weight_decay: 0.5, ..AdamWOptions::default() };
        let mut optimizer = AdamW::new(leaves.iter().map(of).collect(), options).expect("named once");
        optimizer.gradients();
        optimizer.step(0.5, None).expect("finite");
        for (name, leaf) in &leaves {
            // A piece of a matrix is flat too: its name decides.
            let expected = if leaf.dim() == 2 || name.contains("value_head") { 0.75 } else { 1.0 };
            assert!(values(&leaf.reshape([-1])).iter().all(|value| *value == expected), "{name}");
        }
        assert!(leaves.iter().filter(|(_, leaf)| leaf.dim() == 1).count() > 6);
    }

    #[test]
    fn two_parameters_of_one_name_are_refused() {
        let twice = vec![("w".to_owned(), leaf(&[1.0])), ("w".to_owned(), leaf(&[1.0]))];
        let error = AdamW::new(twice, AdamWOptions::default()).expect_err("refused");
        assert!(matches!(error, OptimError::DuplicateParameter { .. }));
    }
}
