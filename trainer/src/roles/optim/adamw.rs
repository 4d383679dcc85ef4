//! AdamW with decoupled weight decay (Loshchilov & Hutter, arXiv:1711.05101), step by step as
//! `torch.optim.AdamW` computes it. Moments that are offloaded between steps are fetched parameter by
//! parameter.

mod fused;
mod moments;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use rlt_decoder::ADAPTED_MODEL;
use rlt_storage::checkpoint::{Checkpoint, CheckpointError};
use rlt_torch::{AdamWStep, OffloadStorage};
use tch::{Kind, Tensor};

use self::moments::{Moments, Prefetched};
use super::{OptimError, StepOutcome};

/// Settings of AdamW, except the learning rate, which is an argument of each step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWOptions {
    /// Decay rates of the first and the second moment, each in [0, 1).
    pub betas: (f64, f64),
    /// Added to the root of the second moment, > 0.
    pub epsilon: f64,
    /// Each step subtracts `learning_rate * weight_decay` of a parameter, independently of its gradient.
    /// Norms and biases are not decayed; they are recognized by name, as in transformers' `Trainer`.
    pub weight_decay: f64,
    /// Factor of the learning rate for B matrices, magnitudes and trained norms of adapters, and for a
    /// classifier's bias (LoRA+, arXiv:2402.12354, grouped as PEFT does).
    pub lora_b_ratio: f64,
}

impl Default for AdamWOptions {
    /// Returns the settings of `torch.optim.AdamW`, with one learning rate for all parameters.
    fn default() -> Self {
        Self { betas: (0.9, 0.999), epsilon: 1e-8, weight_decay: 0.01, lora_b_ratio: 1.0 }
    }
}

/// AdamW over a fixed list of named leaves. Moments are float32 for parameters of any dtype.
#[derive(Debug)]
pub struct AdamW {
    options: AdamWOptions,
    parameters: Vec<Parameter>,
}

#[derive(Debug)]
struct Parameter {
    name: String,
    leaf: Tensor,
    moments: Moments,
    /// Whether weight decay applies to the parameter.
    decays: bool,
    /// Number of steps that updated this parameter; steps without a gradient for it do not count, as in
    /// torch.
    num_steps: i64,
}

/// Factors of one step, the same for every parameter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clipped {
    learning_rate: f64,
    /// Factor of the gradients.
    scale: f64,
}

impl Clipped {
    /// Creates a step at `learning_rate` whose gradients, of norm `grad_norm`, are clipped to
    /// `max_grad_norm`; `None` if the norm is not finite and the step must be skipped.
    pub(crate) fn at_norm(grad_norm: f64, learning_rate: f64, max_grad_norm: Option<f64>) -> Option<Self> {
        let scale = max_grad_norm.map_or(1.0, |max| clip_coefficient(grad_norm, max));
        grad_norm.is_finite().then_some(Self { learning_rate, scale })
    }

    /// Returns the step for gradients that are `factor` times as large.
    pub(crate) fn of_scaled(self, factor: f64) -> Self {
        Self { scale: self.scale / factor, ..self }
    }
}

impl AdamW {
    /// Creates an optimizer of the given leaves, with zero moments on the same device.
    ///
    /// # Errors
    /// Two parameters share a name, or the moments cannot be allocated.
    pub fn new(parameters: Vec<(String, Tensor)>, options: AdamWOptions) -> Result<Self, OptimError> {
        Self::with_moments(parameters, options, None)
    }

    /// Creates an optimizer whose moments are offloaded: to pinned memory of the host for a GPU, and to an
    /// unlinked file of `folder` on the CPU. The moments of a parameter are on the device only while that
    /// parameter and the one before it are updated.
    ///
    /// # Errors
    /// As [`Self::new`], or the file cannot be written, for example on a full disk.
    pub fn with_offloaded_moments(
        parameters: Vec<(String, Tensor)>,
        options: AdamWOptions,
        folder: &Path,
    ) -> Result<Self, OptimError> {
        let Some((_, first)) = parameters.first() else { return Self::new(parameters, options) };
        let storage = OffloadStorage::new(folder, first.device())
            .map_err(|source| OptimError::OffloadStorage { source })?;
        Self::with_moments(parameters, options, Some(storage))
    }

    fn with_moments(
        parameters: Vec<(String, Tensor)>,
        options: AdamWOptions,
        mut storage: Option<OffloadStorage>,
    ) -> Result<Self, OptimError> {
        let mut names = BTreeSet::new();
        if let Some((name, _)) = parameters.iter().find(|(name, _)| !names.insert(name.clone())) {
            return Err(OptimError::DuplicateParameter { name: name.clone() });
        }
        let parameters = parameters.into_iter().map(|named| Parameter::new(named, storage.as_mut()));
        let parameters = parameters.collect::<Result<_, _>>()?;
        Ok(Self { options, parameters })
    }

    /// Applies the accumulated gradients, scaled together so that their L2 norm is at most `max_grad_norm`;
    /// `None` clips nothing. The gradients are kept until [`clear_gradients`](Self::clear_gradients).
    ///
    /// # Errors
    /// A gradient cannot be read, or a parameter cannot be updated.
    pub fn step(
        &mut self,
        learning_rate: f64,
        max_grad_norm: Option<f64>,
    ) -> Result<StepOutcome, OptimError> {
        let grad_norm = self.grad_norm(|_| true)?;
        let Some(clipped) = Clipped::at_norm(grad_norm, learning_rate, max_grad_norm) else {
            return Ok(StepOutcome::SkippedNonFinite);
        };
        self.update(&clipped, |_| true)?;
        Ok(StepOutcome::Applied { grad_norm })
    }

    /// Computes the joint L2 norm of the gradients of all parameters whose name `among` accepts. It does not
    /// depend on the order of parameters.
    ///
    /// # Errors
    /// A gradient cannot be read.
    pub fn grad_norm(&self, among: impl Fn(&str) -> bool) -> Result<f64, OptimError> {
        let of_one = |parameter: &Parameter| (parameter.name.clone(), parameter.leaf.grad());
        let wanted = self.parameters.iter().filter(|parameter| among(&parameter.name));
        let gradients: BTreeMap<String, Tensor> =
            wanted.map(of_one).filter(|(_, gradient)| gradient.defined()).collect();
        rlt_torch::global_norm(gradients.values()).map_err(|source| OptimError::Norm { source })
    }

    /// Updates the parameters that have a gradient and whose name `among` accepts. Meanwhile the moments of
    /// the next parameter are prefetched.
    ///
    /// # Errors
    /// A parameter cannot be updated.
    pub(crate) fn update(
        &mut self,
        clipped: &Clipped,
        among: impl Fn(&str) -> bool,
    ) -> Result<(), OptimError> {
        let options = self.options;
        let is_wanted =
            |parameter: &&mut Parameter| parameter.leaf.grad().defined() && among(&parameter.name);
        let wanted = self.parameters.iter_mut().filter(is_wanted);
        let (together, one_by_one): (Vec<_>, Vec<_>) = wanted.partition(|parameter| parameter.is_fusible());
        fused::update(&options, clipped, together)?;
        let mut wanted = one_by_one.into_iter().map(Parameter::prefetch);
        let mut next = wanted.next().transpose()?;
        while let Some((parameter, prefetched)) = next {
            let moments = prefetched.wait().map_err(parameter.failed())?;
            next = wanted.next().transpose()?;
            parameter.step(&options, clipped, moments)?;
        }
        Ok(())
    }

    /// Returns the leaves with their names, in order. The tensors share memory with those of the optimizer.
    pub fn parameters(&self) -> Vec<(String, Tensor)> {
        let named = |parameter: &Parameter| (parameter.name.clone(), parameter.leaf.shallow_clone());
        self.parameters.iter().map(named).collect()
    }

    /// Returns the gradients of all parameters, in order. A parameter without a gradient gets one of zeros.
    /// The tensors share memory with the leaves' gradients.
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

    /// Resets moments and counts, as if no step had been taken.
    ///
    /// # Errors
    /// Offloaded moments cannot be written.
    pub fn reset(&mut self) -> Result<(), OptimError> {
        self.parameters.iter_mut().try_for_each(|parameter| {
            parameter.num_steps = 0;
            let forget = |moments: &[Tensor; 2]| {
                moments.iter().for_each(|moment| drop(moment.shallow_clone().zero_()));
                Ok::<_, rlt_torch::Error>(())
            };
            parameter.moments.change(forget).map_err(parameter.failed())
        })
    }

    /// Returns the moments and the step count of every parameter, for a checkpoint: `<name>.exp_avg` and
    /// `<name>.exp_avg_sq`, float32 in the parameter's shape, and `<name>.num_steps`, one int64, each under
    /// `optimizer.`. The tensors share memory with the optimizer, or are in offload storage.
    ///
    /// # Errors
    /// Offloaded moments cannot be read.
    pub fn state_tensors(&self) -> Result<Vec<(String, Tensor)>, rlt_torch::Error> {
        let mut tensors = Vec::with_capacity(3 * self.parameters.len());
        for parameter in &self.parameters {
            let moments = moments::NAMES.into_iter().zip(parameter.moments.in_place()?);
            tensors.extend(moments.map(|(part, moment)| (parameter.state_name(part), moment)));
            tensors.push((parameter.state_name("num_steps"), Tensor::from(parameter.num_steps)));
        }
        Ok(tensors)
    }

    /// Loads the moments and counts that [`state_tensors`](Self::state_tensors) stored in a checkpoint.
    ///
    /// # Errors
    /// The checkpoint lacks a tensor of a parameter, or one has another shape.
    pub fn load(&mut self, checkpoint: &Checkpoint) -> Result<(), CheckpointError> {
        self.load_moments(checkpoint, |_, state_name, moment| checkpoint.load_into(state_name, moment))
    }

    /// Loads moments and counts as [`load`](Self::load) does, for leaves that are shards of the checkpoint's
    /// tensors. `load_moment` gets the parameter's name, the checkpoint's name of a moment, and the moment in
    /// the leaf's shape.
    ///
    /// # Errors
    /// The checkpoint lacks a count, or the error of `load_moment`.
    pub fn load_moments(
        &mut self,
        checkpoint: &Checkpoint,
        mut load_moment: impl FnMut(&str, &str, &Tensor) -> Result<(), CheckpointError>,
    ) -> Result<(), CheckpointError> {
        self.parameters.iter_mut().try_for_each(|parameter| {
            parameter.moments.change(|moments| {
                let mut named = moments::NAMES.into_iter().zip(moments);
                named.try_for_each(|(part, moment)| {
                    load_moment(&parameter.name, &parameter.state_name(part), moment)
                })
            })?;
            let num_steps = Tensor::from(0i64);
            checkpoint.load_into(&parameter.state_name("num_steps"), &num_steps)?;
            parameter.num_steps = num_steps.int64_value(&[]);
            Ok(())
        })
    }
}

impl Parameter {
    fn new((name, leaf): (String, Tensor), storage: Option<&mut OffloadStorage>) -> Result<Self, OptimError> {
        let moments = Moments::zeros(&leaf, storage)
            .map_err(|source| OptimError::Moments { name: name.clone(), source })?;
        Ok(Self { moments, decays: decays(&name), name, leaf, num_steps: 0 })
    }

    fn state_name(&self, part: &str) -> String {
        format!("optimizer.{}.{part}", self.name)
    }

    fn failed(&self) -> impl FnOnce(rlt_torch::Error) -> OptimError + use<> {
        let name = self.name.clone();
        move |source| OptimError::Moments { name, source }
    }

    /// Starts the prefetch of the moments.
    fn prefetch(&mut self) -> Result<(&mut Self, Prefetched), OptimError> {
        let prefetched = self.moments.prefetch().map_err(self.failed())?;
        Ok((self, prefetched))
    }

    fn next_step(&self, options: &AdamWOptions, clipped: &Clipped) -> AdamWStep {
        AdamWStep {
            learning_rate: clipped.learning_rate * self.rate_factor(options),
            betas: options.betas,
            epsilon: options.epsilon,
            weight_decay: if self.decays { options.weight_decay } else { 0.0 },
            grad_scale: clipped.scale,
            step: self.num_steps + 1,
        }
    }

    /// Returns the parameter's factor of the learning rate (LoRA+).
    fn rate_factor(&self, options: &AdamWOptions) -> f64 {
        if is_behind_a(&self.name) { options.lora_b_ratio } else { 1.0 }
    }

    /// Applies one update with the gradient.
    fn step(
        &mut self,
        options: &AdamWOptions,
        clipped: &Clipped,
        mut moments: [Tensor; 2],
    ) -> Result<(), OptimError> {
        let step = self.next_step(options, clipped);
        let failed = |name: &str, source| OptimError::Step { name: name.to_owned(), source };
        if self.step_by_kernel(&moments, step).map_err(|source| failed(&self.name, source))? {
            self.num_steps = step.step;
            return self.moments.put_back(&moments).map_err(self.failed());
        }
        // Both share memory with the original if that is float32 already.
        let wide = |tensor: &Tensor| tensor.f_detach()?.f_to_kind(Kind::Float);
        let (values, gradient) = wide(&self.leaf)
            .and_then(|values| Ok((values, wide(&self.leaf.grad())?)))
            .map_err(OptimError::tensor("read parameter", &self.name))?;
        self.update(values, &gradient, &mut moments, &step).map_err(|source| failed(&self.name, source))?;
        self.moments.put_back(&moments).map_err(self.failed())
    }

    fn update(
        &mut self,
        mut values: Tensor,
        gradient: &Tensor,
        [exp_avg, exp_avg_sq]: &mut [Tensor; 2],
        step: &AdamWStep,
    ) -> Result<(), rlt_torch::Error> {
        rlt_torch::adamw_step(&mut values, gradient, exp_avg, exp_avg_sq, step)?;
        if self.leaf.kind() != Kind::Float {
            tch::no_grad(|| self.leaf.copy_(&values));
        }
        self.num_steps = step.step;
        Ok(())
    }
}

/// Whether weight decay applies to a parameter. Norms and biases are spared: they scale or shift activations
/// and do not grow without bound, and the neutral value of a norm is 1 in most families, not 0.
fn decays(name: &str) -> bool {
    let is_spared = |part: &str| {
        part == "bias"
            || part.ends_with("_bias")
            || matches!(part, "norm" | "norm1" | "norm2" | "ln_q")
            || part.ends_with("_norm")
            || part.ends_with("layernorm")
    };
    !name.split('.').any(is_spared)
}

/// Whether LoRA+ gives a parameter another learning rate: B matrices and vectors. The name decides, because a
/// shard of a matrix is flat, too.
fn is_behind_a(name: &str) -> bool {
    let is_saved_norm = || name.contains(ADAPTED_MODEL) && name.ends_with("norm.weight");
    name.contains(".lora_B.")
        || name.ends_with(".lora_magnitude_vector")
        || name.ends_with("score.bias")
        || is_saved_norm()
}

/// Returns the factor that reduces `grad_norm` to `max_grad_norm`, at most 1. The divisor includes the small
/// constant of `torch.nn.utils.clip_grad_norm_`.
fn clip_coefficient(grad_norm: f64, max_grad_norm: f64) -> f64 {
    (max_grad_norm / (grad_norm + 1e-6)).min(1.0)
}

#[cfg(test)]
mod tests;
