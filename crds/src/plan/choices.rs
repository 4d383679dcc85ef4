//! What a manifest leaves open until the device is known: the numbers that compute, and whether layers keep
//! their activations. The trainer and the plan choose by the same functions.

use serde::Serialize;

use super::batch::BatchPlan;
use super::memory::{MemoryPlan, Phase};
use super::model_config::ModelConfig;
use crate::resolved::ResolvedSpec;
use crate::spec::{Device, Precision};

/// Models above so many parameters checkpoint activations on GPUs by default.
const CHECKPOINTED_PARAMETERS: u64 = 1_000_000_000;

/// The part of a device's memory that a choice may fill: the allocator's fragments and what libraries take
/// need the rest.
const FILLED: f64 = 0.8;

/// What was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Choices {
    /// Numbers of the training's layers.
    pub precision: Precision,
    /// Numbers of the rollout.
    pub rollout_precision: Precision,
    /// Whether layers keep only their inputs.
    pub activation_checkpointing: bool,
}

impl Choices {
    /// What the manifest says or leaves to `device`, with `memory` bytes where that is known. Reward models
    /// do not enter into it.
    pub fn new(
        spec: &ResolvedSpec,
        model: Option<&ModelConfig>,
        device: Device,
        memory: Option<u64>,
    ) -> Self {
        let precision = spec.training.precision.on(device);
        let rollout_precision = spec.rollout.precision.map_or(precision, |own| own.on(device));
        let chosen = Self { precision, rollout_precision, activation_checkpointing: false };
        let by_default = || model.is_some_and(|model| chosen.must_checkpoint(spec, model, device, memory));
        let activation_checkpointing = spec.training.activation_checkpointing.unwrap_or_else(by_default);
        Self { activation_checkpointing, ..chosen }
    }

    /// The specification with nothing of this left open.
    #[must_use]
    pub fn made_in(&self, spec: &ResolvedSpec) -> ResolvedSpec {
        let mut spec = spec.clone();
        spec.training.precision = self.precision;
        spec.rollout.precision = Some(self.rollout_precision);
        spec.training.activation_checkpointing = Some(self.activation_checkpointing);
        spec
    }

    /// Whether a large model's layers would not all fit with everything that they keep.
    fn must_checkpoint(
        &self,
        spec: &ResolvedSpec,
        model: &ModelConfig,
        device: Device,
        memory: Option<u64>,
    ) -> bool {
        let is_large = device == Device::Cuda && model.parameter_count().total() > CHECKPOINTED_PARAMETERS;
        let fits = |memory: u64| {
            let mut spec = self.made_in(spec);
            spec.workers.device = device;
            let plan = MemoryPlan::new(&spec, model, &[], &BatchPlan::new(&spec), Some(memory));
            let update = plan.phases.iter().find(|phase| phase.phase == Phase::Update);
            update.is_none_or(|update| update.device_bytes as f64 <= FILLED * memory as f64)
        };
        is_large && !memory.is_some_and(fits)
    }
}
