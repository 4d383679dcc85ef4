//! `spec.algorithm.referenceSync`: updates of the reference policy towards the actor.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Periodic update of the reference policy towards the actor (TR-DPO, <https://arxiv.org/abs/2404.09656>;
/// TRL's `sync_ref_model`).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ReferenceSyncSpec {
    /// Number of steps between two updates of the reference (TRL's `ref_model_sync_steps`, which counts
    /// optimizer updates).
    #[schemars(range(min = 1, max = 10000000))]
    pub every_steps: u32,
    /// Weight of the actor in the update: a weight of the reference becomes `alpha` times the actor's plus `1
    /// - alpha` times its own (TRL's `ref_model_mixup_alpha`). 1 copies the actor.
    #[schemars(range(min = 1e-6, max = 1.0))]
    pub alpha: f64,
}

impl Default for ReferenceSyncSpec {
    /// Uses TRL's values.
    fn default() -> Self {
        Self { every_steps: 512, alpha: 0.6 }
    }
}
