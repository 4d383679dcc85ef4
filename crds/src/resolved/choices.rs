//! Values of the fields that the manifest may leave open because their defaults depend on the device. The
//! plan chooses them.

use serde::Serialize;

use super::ResolvedSpec;
use crate::spec::Precision;

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
}
