//! Adapters of experts and routers, as PEFT's `target_parameters` makes them: attached, and read in both
//! layouts.
//!
//! ```text
//! since PEFT 0.19   lora_A [e r, in]     lora_B [out, r e]    delta_e = B_e A_e
//! PEFT 0.18         lora_A [e r, out]    lora_B [in, r e]     the same with inputs and outputs exchanged
//! ```
//! In `lora_A` experts follow each other, in `lora_B` the expert index changes fastest.

use std::path::Path;

use rlt_api::conflicts::{Fact, conflict_of};
use rlt_api::spec::LoraInit;
use serde_json::Value;
use tch::{Device, Kind, Tensor};

use super::{LoraConfig, LoraError};
use crate::decoder::Decoder;
use crate::expert_lora::{ExpertLora, ExpertTensor};
use crate::experts::ExpertWeights;
use crate::projection::LoraPair;
use crate::random::TensorRandom;

/// First version of PEFT with the present layout.
const PRESENT_LAYOUT: (u64, u64) = (0, 19);

impl Decoder {
    /// Refuses target parameters that no layer has, and settings that PEFT refuses for such adapters.
    pub(super) fn check_expert_targets(&self, config: &LoraConfig) -> Result<(), LoraError> {
        if config.target_parameters.is_empty() {
            return Ok(());
        }
        let refused = |field, expected, got| Err(LoraError::NotForParameters { field, expected, got });
        if config.dropout > 0.0 {
            return refused("dropout", "0, as PEFT has none there", config.dropout.to_string());
        }
        if config.dora {
            return refused("dora", "false, as PEFT has none there", "true".to_owned());
        }
        if config.init == LoraInit::Orthogonal {
            return refused("init", "Peft, Gaussian or Xavier", "Orthogonal".to_owned());
        }
        if let Some(conflict) = conflict_of(Fact::ExpertAdapters, &self.config.facts()) {
            let got = config.target_parameters.join(", ");
            return refused("targetParameters", conflict.expected().unwrap_or("none"), got);
        }
        let experts = || self.layers.iter().filter_map(|layer| layer.experts());
        for name in &config.target_parameters {
            let available = experts().flat_map(names_of).any(|parameter| is_match(name, &parameter));
            if !available {
                let available = match experts().next() {
                    None => "none",
                    Some(_) => "gate.weight, gate_up_proj, down_proj",
                };
                return Err(LoraError::UnknownParameter {
                    name: name.clone(),
                    available: available.to_owned(),
                });
            }
        }
        Ok(())
    }

    /// Attaches fresh adapters to the parameters that `config` names.
    pub(super) fn attach_to_experts(&mut self, config: &LoraConfig, seed: u64) -> Result<(), LoraError> {
        let is_target = |name: &str| config.target_parameters.iter().any(|target| is_match(target, name));
        let Some(experts) = &self.config.experts else { return Ok(()) };
        let [width, hidden] = [experts.intermediate_size, self.config.hidden_size].map(|size| size as i64);
        let device = self.device();
        let place = |matrix: Tensor| matrix.to_device(device).set_requires_grad(true);
        for experts in self.layers.iter_mut().filter_map(|layer| layer.experts.as_mut()) {
            let name = experts.router_name();
            if is_target(&name) {
                let (rank, scaling) = config.rank_and_scaling(&name)?;
                let [num_experts, inputs] = [0, 1].map(|dim: usize| experts.router.size()[dim]);
                let (a, b) = matrices(config.init, rank, seed, &name, [1, num_experts, inputs]);
                experts.router_lora = Some(LoraPair {
                    a: place(a),
                    b: place(b),
                    magnitudes: None,
                    scaling,
                    dropout: 0.0,
                    dropout_position: config.dropout_position,
                });
            }
            for tensor in ExpertTensor::ALL {
                let name = experts.tensor_name(tensor);
                if is_target(&name) {
                    let (rank, scaling) = config.rank_and_scaling(&name)?;
                    // The full matrices of all experts, even if a rank holds only a shard of the weights.
                    let [outputs, inputs] = match tensor {
                        ExpertTensor::GateUp => [2 * width, hidden],
                        ExpertTensor::Down => [hidden, width],
                    };
                    let size = [experts.router.size()[0], outputs, inputs];
                    let (a, b) = matrices(config.init, rank, seed, &name, size);
                    let lora = ExpertLora::new(place(a), place(b), scaling, size[0]);
                    experts.lora[tensor as usize] = Some(lora);
                }
            }
        }
        Ok(())
    }
}

/// Whether `target` matches a parameter by PEFT's rule: by its full name, or by its end after a dot.
fn is_match(target: &str, parameter: &str) -> bool {
    parameter == target || parameter.strip_suffix(target).is_some_and(|start| start.ends_with('.'))
}

/// The parameters of router and experts that can have an adapter.
fn names_of(experts: &ExpertWeights) -> Vec<String> {
    let tensors = ExpertTensor::ALL.map(|tensor| experts.tensor_name(tensor));
    std::iter::once(experts.router_name()).chain(tensors).collect()
}

/// Draws A [e r, in], and makes B [out, r e] of zeros, both f32 on the CPU.
fn matrices(
    init: LoraInit,
    rank: usize,
    seed: u64,
    name: &str,
    [num_experts, outputs, inputs]: [i64; 3],
) -> (Tensor, Tensor) {
    let mut random = TensorRandom::new(seed, &format!("{name}.lora_A"));
    let num_rows = num_experts * rank as i64;
    let num_values = (num_rows * inputs) as usize;
    let values = match init {
        LoraInit::Gaussian => random.normal(num_values, 1.0 / rank as f64),
        LoraInit::Xavier => random.normal(num_values, (2.0 / (inputs as f64 + rank as f64)).sqrt()),
        LoraInit::Peft | LoraInit::Orthogonal | LoraInit::Loftq => {
            random.uniform(num_values, (inputs as f64).powf(-0.5))
        }
    };
    let b = Tensor::zeros([outputs, num_rows], (Kind::Float, Device::Cpu));
    (Tensor::from_slice(&values).reshape([num_rows, inputs]), b)
}

/// Whether the stored matrices of an adapter of experts are in PEFT 0.18's layout, by their shapes. If both
/// layouts fit, the version of PEFT in `document` decides.
pub(super) fn is_in_old_layout(
    lora: &ExpertLora,
    stored: [&[usize]; 2],
    document: &Value,
    path: &Path,
    name: &str,
) -> Result<bool, LoraError> {
    let shapes = [&lora.a, &lora.b].map(Tensor::size);
    let [[rows_of_a, inputs], [outputs, columns_of_b]] =
        shapes.each_ref().map(|shape| [0, 1].map(|dim: usize| shape[dim]));
    let fits = |a: [i64; 2], b: [i64; 2]| {
        let is_stored = |(shape, stored): (&[i64; 2], &[usize])| {
            stored.iter().map(|dim| *dim as i64).eq(shape.iter().copied())
        };
        [a, b].iter().zip(stored).all(is_stored)
    };
    let is_present = fits([rows_of_a, inputs], [outputs, columns_of_b]);
    let is_old = fits([rows_of_a, outputs], [inputs, columns_of_b]);
    if !(is_present && is_old) {
        return Ok(is_old);
    }
    let numbers = document["peft_version"].as_str().map(|version| version.split('.').map(str::parse::<u64>));
    match numbers.map(|mut numbers| (numbers.next(), numbers.next())) {
        Some((Some(Ok(major)), Some(Ok(minor)))) => Ok((major, minor) < PRESENT_LAYOUT),
        _ => Err(LoraError::AmbiguousLayout {
            path: path.to_owned(),
            tensor: name.to_owned(),
            shape: shapes[0].clone(),
            got: document["peft_version"].to_string(),
        }),
    }
}

/// Converts matrices of PEFT 0.18's layout to the present one: A and B of each expert are transposed and
/// exchanged.
pub(super) fn from_old_layout(a: &Tensor, b: &Tensor, num_experts: i64) -> (Tensor, Tensor) {
    let (a_ero, b_ire) = (a.unflatten(0, [num_experts, -1]), b.unflatten(1, [-1, num_experts]));
    // [i, r, e] to [e, r, i], and [e, r, o] to [o, r, e].
    let (new_a, new_b) = (b_ire.permute([2, 1, 0]), a_ero.permute([2, 1, 0]));
    (new_a.contiguous().flatten(0, 1), new_b.contiguous().flatten(1, 2))
}
