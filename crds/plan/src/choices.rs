//! Chooses defaults that depend on the device: compute dtype, activation checkpointing, and whether the
//! rollout merges an adapter. The trainer and the plan use the same function.

use rlt_api::conflicts::{ChosenDevice, Fact, conflict_of};
use rlt_api::resolved::{Choices, ResolvedSpec};
use rlt_models::ModelConfig;

use super::batch::BatchPlan;
use super::memory::{MemoryPlan, Phase, memory_of_rank, quantized_as};
use super::weight_sync;

/// Number of parameters above which models checkpoint activations on GPUs by default.
const CHECKPOINTED_PARAMETERS: u64 = 1_000_000_000;

/// Fraction of a device's memory that a choice may fill. The rest is for fragmentation of the allocator and
/// for libraries.
const FILLED: f64 = 0.8;

/// Maximum peak memory of an unmerged adapter, relative to a merged one, for which the default is not to
/// merge.
const MORE_MEMORY: f64 = 1.125;

/// Takes the manifest's values, or chooses defaults for `device` with `memory` bytes, where known. Reward
/// models are not considered.
pub fn choices_for(
    spec: &ResolvedSpec,
    model: Option<&ModelConfig>,
    device: ChosenDevice,
    memory: Option<u64>,
) -> Choices {
    let precision = spec.training.precision.on(device.into());
    let rollout_precision = spec.rollout.precision.map_or(precision, |own| own.on(device.into()));
    let merge_lora = spec.model.lora.as_ref().and_then(|lora| lora.merge);
    let chosen = Choices { precision, rollout_precision, activation_checkpointing: false, merge_lora };
    let by_default = || model.is_some_and(|model| must_checkpoint(chosen, spec, model, device, memory));
    let activation_checkpointing = spec.training.activation_checkpointing.unwrap_or_else(by_default);
    let chosen = Choices { activation_checkpointing, ..chosen };
    let by_default = || model.and_then(|model| merges_lora(chosen, spec, model, device, memory));
    Choices { merge_lora: merge_lora.or_else(by_default), ..chosen }
}

/// Whether the rollout should merge the adapter. By default an adapter stays unmerged only if nothing rules
/// it out and the peak memory hardly grows.
fn merges_lora(
    chosen: Choices,
    spec: &ResolvedSpec,
    model: &ModelConfig,
    device: ChosenDevice,
    memory: Option<u64>,
) -> Option<bool> {
    let lora = spec.model.lora.as_ref()?;
    let model = quantized_as(spec, model);
    let facts = model.facts().with_adapter(Some(lora)).on(device);
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
        let mut spec = Choices { merge_lora: Some(merge_lora), ..chosen }.made_in(spec);
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
    chosen: Choices,
    spec: &ResolvedSpec,
    model: &ModelConfig,
    device: ChosenDevice,
    memory: Option<u64>,
) -> bool {
    let is_large = device == ChosenDevice::Cuda && model.parameter_count().total() > CHECKPOINTED_PARAMETERS;
    let fits = |memory: u64| {
        let mut spec = chosen.made_in(spec);
        spec.workers.device = device.into();
        let plan = MemoryPlan::new(&spec, model, &[], &BatchPlan::new(&spec), Some(memory));
        let update = plan.phases.iter().find(|phase| phase.phase == Phase::Update);
        update.is_none_or(|update| update.device_bytes as f64 <= FILLED * memory as f64)
    };
    is_large && !memory.is_some_and(fits)
}
