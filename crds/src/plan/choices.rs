//! Defaults that depend on the device: compute dtype, activation checkpointing, and whether the rollout
//! merges an adapter. The trainer and the plan use the same functions.

use serde::Serialize;

use super::batch::BatchPlan;
use super::memory::{MemoryPlan, Phase, memory_of_rank, quantized_as};
use super::model_config::ModelConfig;
use super::weight_sync;
use crate::conflicts::{ChosenDevice, Fact, Facts, conflict_of};
use crate::resolved::ResolvedSpec;
use crate::spec::Precision;

/// Number of parameters above which models checkpoint activations on GPUs by default.
const CHECKPOINTED_PARAMETERS: u64 = 1_000_000_000;

/// Fraction of a device's memory that a choice may fill. The rest is for fragments of the allocator and for
/// libraries.
const FILLED: f64 = 0.8;

/// Most memory at the peak, relative to a merged adapter, that an unmerged one may take by default.
const MORE_MEMORY: f64 = 1.125;

/// Values chosen for the open fields of a specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Choices {
    /// Compute dtype of the training.
    pub precision: Precision,
    /// Compute dtype of the rollout.
    pub rollout_precision: Precision,
    /// Whether activations inside layers are recomputed, so that layers keep only their inputs.
    pub activation_checkpointing: bool,
    /// Whether the rollout merges the adapter into its weights; `None` without an adapter, and without the
    /// model's configuration where the manifest leaves it open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub merge_lora: Option<bool>,
}

impl Choices {
    /// Takes the manifest's values, or chooses defaults for `device` with `memory` bytes, where known. Reward
    /// models are not considered.
    pub fn new(
        spec: &ResolvedSpec,
        model: Option<&ModelConfig>,
        device: ChosenDevice,
        memory: Option<u64>,
    ) -> Self {
        let precision = spec.training.precision.on(device.into());
        let rollout_precision = spec.rollout.precision.map_or(precision, |own| own.on(device.into()));
        let merge_lora = spec.model.lora.as_ref().and_then(|lora| lora.merge);
        let chosen = Self { precision, rollout_precision, activation_checkpointing: false, merge_lora };
        let by_default = || model.is_some_and(|model| chosen.must_checkpoint(spec, model, device, memory));
        let activation_checkpointing = spec.training.activation_checkpointing.unwrap_or_else(by_default);
        let chosen = Self { activation_checkpointing, ..chosen };
        let by_default = || model.and_then(|model| chosen.merges(spec, model, device, memory));
        Self { merge_lora: merge_lora.or_else(by_default), ..chosen }
    }

    /// Returns the specification with these choices filled in.
    #[must_use]
    pub fn made_in(&self, spec: &ResolvedSpec) -> ResolvedSpec {
        let mut spec = spec.clone();
        spec.training.precision = self.precision;
        spec.rollout.precision = Some(self.rollout_precision);
        spec.training.activation_checkpointing = Some(self.activation_checkpointing);
        if let Some(lora) = &mut spec.model.lora {
            lora.merge = self.merge_lora;
        }
        spec
    }

    /// Whether merging the adapter is cheaper. An adapter stays unmerged only if nothing rules it out and it
    /// takes hardly more memory.
    fn merges(
        &self,
        spec: &ResolvedSpec,
        model: &ModelConfig,
        device: ChosenDevice,
        memory: Option<u64>,
    ) -> Option<bool> {
        let lora = spec.model.lora.as_ref()?;
        let model = quantized_as(spec, model);
        let facts = Facts::of_model(&model).with_adapter(Some(lora)).on(device);
        if conflict_of(Fact::UnmergedAdapter, &facts).is_some() {
            return Some(true);
        }
        if model.quantization.is_some() {
            return Some(false);
        }
        // An unmerged adapter costs eight more kernel launches a layer in each decoding step.
        if device == ChosenDevice::Cuda {
            return Some(true);
        }
        let peak = |merge_lora| {
            let mut spec = Self { merge_lora: Some(merge_lora), ..*self }.made_in(spec);
            spec.workers.device = device.into();
            MemoryPlan::new(&spec, &model, &[], &BatchPlan::new(&spec), memory).peak_bytes
        };
        let is_cheaper = spec.algorithm.samples() && weight_sync::folding_costs_more(spec, lora, &model);
        let fits = || {
            let of_rank = memory_of_rank(spec, memory).unwrap_or(f64::INFINITY);
            peak(false) as f64 <= of_rank.min(MORE_MEMORY * peak(true) as f64)
        };
        Some(!(is_cheaper && fits()))
    }

    /// Whether a large model must checkpoint, because the activations of all layers would not fit.
    fn must_checkpoint(
        &self,
        spec: &ResolvedSpec,
        model: &ModelConfig,
        device: ChosenDevice,
        memory: Option<u64>,
    ) -> bool {
        let is_large =
            device == ChosenDevice::Cuda && model.parameter_count().total() > CHECKPOINTED_PARAMETERS;
        let fits = |memory: u64| {
            let mut spec = self.made_in(spec);
            spec.workers.device = device.into();
            let plan = MemoryPlan::new(&spec, model, &[], &BatchPlan::new(&spec), Some(memory));
            let update = plan.phases.iter().find(|phase| phase.phase == Phase::Update);
            update.is_none_or(|update| update.device_bytes as f64 <= FILLED * memory as f64)
        };
        is_large && !memory.is_some_and(fits)
    }
}
