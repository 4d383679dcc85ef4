//! Rules of `spec.training` about unsharded layers, offload and the schedule. Batches, budgets and roles have
//! files of the folder.

pub(super) mod batch;
pub(super) mod budgets;
pub(super) mod roles;

use super::{Check, Rule, cel_preset, preset_of};
use crate::spec::{RLTrainingJobSpec, ScheduleKind};

/// Whether layers of a trained role are gathered from shards, or fetched from offload storage.
fn gathers_layers(spec: &RLTrainingJobSpec) -> bool {
    let (mesh, training) = (&spec.workers.mesh, &spec.training);
    let offload_of_critic = training.critic_role().offload.is_some_and(|offload| offload.parameters);
    mesh.dp_shard > 1 || mesh.dp_shard_of_critic() > 1 || training.offload.parameters || offload_of_critic
}

const CEL_GATHERS_LAYERS: &str = "self.workers.mesh.dpShard > 1 || \
     (has(self.workers.mesh.criticDpShard) && self.workers.mesh.criticDpShard > 1) || \
     self.training.offload.parameters || (has(self.training.roles) && has(self.training.roles.critic) && \
     has(self.training.roles.critic.offload) && self.training.roles.critic.offload.parameters)";

pub(super) const RULES: &[Rule] = &[
    Rule {
        scope: "spec.training",
        at: "offload.activations",
        reads: &["offload.activations", "activationCheckpointing"],
        message: "offload.activations needs activationCheckpointing: without it layers keep more than their inputs",
        cel: || {
            "!self.offload.activations || (has(self.activationCheckpointing) && self.activationCheckpointing)"
                .into()
        },
        holds: Check::Spec(|spec| {
            !spec.training.offload.activations || spec.training.activation_checkpointing == Some(true)
        }),
        allowed: Some(|_| "false, or activationCheckpointing true".into()),
    },
    Rule {
        scope: "spec",
        at: "training.reshardAfterForward",
        reads: &[
            "training.reshardAfterForward",
            "training.unshardedLayers",
            "training.offload.parameters",
            "training.roles.critic.offload.parameters",
            "workers.mesh.dpShard",
            "workers.mesh.criticDpShard",
        ],
        message: "reshardAfterForward false and unshardedLayers need layers that are gathered: share them by \
                  workers.mesh.dpShard or criticDpShard, or move them by training.offload.parameters",
        cel: || {
            format!(
                "(self.training.reshardAfterForward && !has(self.training.unshardedLayers)) || {CEL_GATHERS_LAYERS}"
            )
        },
        holds: Check::Spec(|spec| {
            let is_default = spec.training.reshard_after_forward && spec.training.unsharded_layers.is_none();
            is_default || gathers_layers(spec)
        }),
        allowed: Some(|_| "true, without unshardedLayers".into()),
    },
    Rule {
        scope: "spec.training",
        at: "unshardedLayers",
        reads: &["unshardedLayers", "reshardAfterForward"],
        message: "with reshardAfterForward false all layers stay gathered: remove unshardedLayers",
        cel: || "self.reshardAfterForward || !has(self.unshardedLayers)".into(),
        holds: Check::Spec(|spec| {
            spec.training.reshard_after_forward || spec.training.unsharded_layers.is_none()
        }),
        allowed: None,
    },
    Rule {
        scope: "spec.training",
        at: "schedule.warmupSteps",
        reads: &["schedule.warmupSteps", "steps"],
        message: "warmupSteps must be below steps",
        cel: || "!has(self.steps) || self.schedule.warmupSteps < self.steps".into(),
        holds: Check::Spec(|spec| {
            spec.training.steps.is_none_or(|steps| spec.training.schedule.warmup_steps < steps)
        }),
        allowed: Some(|spec| {
            spec.training.steps.map_or_else(String::new, |steps| format!("0 to {}", steps.saturating_sub(1)))
        }),
    },
    Rule {
        scope: "spec.training",
        at: "schedule.warmupRatio",
        reads: &["schedule.warmupRatio", "schedule.warmupSteps"],
        message: "warmupRatio is in place of warmupSteps: remove one of them",
        cel: || "!has(self.schedule.warmupRatio) || self.schedule.warmupSteps == 0".into(),
        holds: Check::Spec(|spec| {
            spec.training.schedule.warmup_ratio.is_none() || spec.training.schedule.warmup_steps == 0
        }),
        allowed: None,
    },
    Rule {
        scope: "spec",
        at: "training.schedule.minRatio",
        reads: &[
            "training.schedule.minRatio",
            "training.schedule.kind",
            "algorithm.kind",
            "algorithm.preset",
        ],
        message: "minRatio is not used by the schedule Constant",
        cel: || {
            format!(
                "self.training.schedule.minRatio == 0.0 || (has(self.training.schedule.kind) ? \
                 self.training.schedule.kind : {}) != 'Constant'",
                cel_preset("self.algorithm", |preset| preset.schedule)
            )
        },
        holds: Check::Spec(|spec| {
            let schedule = &spec.training.schedule;
            let kind = schedule.kind.unwrap_or_else(|| preset_of(spec).schedule);
            kind != ScheduleKind::Constant || schedule.min_ratio == 0.0
        }),
        allowed: Some(|_| "0, or the kind Cosine or Linear".into()),
    },
];
