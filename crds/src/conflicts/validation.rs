//! Validation rules of the conflicts that a manifest shows by itself: their messages and CEL conditions. The
//! facts of a rule's conflicts decide whether it is broken.

use super::rule::ConflictRule;
use super::{CONFLICTS, Facts};
use crate::rules::{cel_estimator, cel_has, cel_learns_from, cel_list, with_critic};
use crate::spec::LearnsFrom;

impl ConflictRule {
    /// Whether a manifest with these facts has none of the conflicts that the rule refuses.
    pub(crate) fn holds(&self, facts: &Facts) -> bool {
        let mut own = CONFLICTS
            .iter()
            .filter(|conflict| conflict.rule.is_some_and(|rule| rule.message == self.message));
        !own.any(|conflict| conflict.is_met(facts))
    }
}

macro_rules! tp_rules {
    ($($(#[$doc:meta])* $name:ident: $reads:literal, $message:literal, $cel:literal;)*) => {
        $(
            $(#[$doc])*
            pub(crate) const $name: &ConflictRule = &ConflictRule {
                scope: "spec",
                at: "workers.mesh.tp",
                reads: &["workers.mesh.tp", $reads],
                message: $message,
                cel: || format!("self.workers.mesh.tp == 1 || !({})", $cel),
                allowed: Some("1"),
            };
        )*
    };
}

tp_rules! {
    /// Tensor parallelism with a vision tower.
    TP_VISION: "model.architecture.vision",
        "tp does not support models with a vision tower",
        "has(self.model.architecture) && has(self.model.architecture.vision)";
    /// Tensor parallelism with quantized weights.
    TP_QUANTIZED: "model.quantization",
        "tp does not split quantized weights: remove model.quantization, or shard them with dpShard",
        "has(self.model.quantization)";
    /// Tensor parallelism with DoRA.
    TP_DORA: "model.lora.dora",
        "tp does not support DoRA, whose norms are of full rows of a weight",
        "has(self.model.lora) && self.model.lora.dora";
}

/// Dropout with adapters of `targetParameters`.
pub(crate) const PARAMETERS_DROPOUT: &ConflictRule = &ConflictRule {
    scope: "spec.model.lora",
    at: "dropout",
    reads: &["dropout", "targetParameters"],
    message: "adapters of targetParameters have no dropout",
    cel: || "self.targetParameters.size() == 0 || self.dropout == 0.0".into(),
    allowed: Some("0"),
};

/// Orthogonal start of adapters of `targetParameters`.
pub(crate) const PARAMETERS_ORTHOGONAL: &ConflictRule = &ConflictRule {
    scope: "spec.model.lora",
    at: "init",
    reads: &["init", "targetParameters"],
    message: "adapters of targetParameters do not start Orthogonal",
    cel: || "self.targetParameters.size() == 0 || self.init != 'Orthogonal'".into(),
    allowed: Some("Peft, Gaussian, Xavier"),
};

/// DoRA of adapters of `targetParameters`.
pub(crate) const PARAMETERS_DORA: &ConflictRule = &ConflictRule {
    scope: "spec.model.lora",
    at: "dora",
    reads: &["dora", "targetParameters"],
    message: "adapters of targetParameters have no magnitudes",
    cel: || "self.targetParameters.size() == 0 || !self.dora".into(),
    allowed: Some("false"),
};

/// Dropout on the outputs of DoRA.
pub(crate) const DORA_DROPOUT: &ConflictRule = &ConflictRule {
    scope: "spec.model.lora",
    at: "dropoutPosition",
    reads: &["dropoutPosition", "dora"],
    message: "DoRA drops before A: what it scales has no output of B alone",
    cel: || "!self.dora || self.dropoutPosition != 'After'".into(),
    allowed: Some("Before"),
};

/// Resizing of a newly initialized adapter, or of adapters of `targetParameters`.
pub(crate) const RESIZED: &ConflictRule = &ConflictRule {
    scope: "spec.model.lora",
    at: "resizeAdapter",
    reads: &["resizeAdapter", "adapterPath", "targetParameters"],
    message: "resizeAdapter needs an adapterPath, and adapters of targetParameters keep their ranks",
    cel: || "!self.resizeAdapter || (has(self.adapterPath) && self.targetParameters.size() == 0)".into(),
    allowed: None,
};

/// Adapter of the vision tower of a model without one.
pub(crate) const ADAPTED_TOWER: &ConflictRule = &ConflictRule {
    scope: "spec.model",
    at: "lora.vlmLora",
    reads: &["lora.vlmLora", "architecture.vision"],
    message: "Vision and Both adapt the vision tower of a model that has one",
    cel: || {
        "!has(self.lora) || self.lora.vlmLora == 'Text' || !has(self.architecture) || \
         has(self.architecture.vision)"
            .into()
    },
    allowed: Some("Text"),
};

/// Unmerged adapter that the rollout cannot sample from.
pub(crate) const UNMERGED: &ConflictRule = &ConflictRule {
    scope: "spec.model.lora",
    at: "merge",
    reads: &["merge", "dora", "targetParameters", "modulesToSave"],
    message: "DoRA, adapters of targetParameters and modulesToSave are sampled from folded in: merge must not \
              be false",
    cel: || {
        "!has(self.merge) || self.merge || (!self.dora && self.targetParameters.size() == 0 && \
         self.modulesToSave.size() == 0)"
            .into()
    },
    allowed: Some("true"),
};

/// Training of a vision tower that the model does not have.
pub(crate) const TRAINED_NO_TOWER: &ConflictRule = &ConflictRule {
    scope: "spec.model",
    at: "visionTower",
    reads: &["visionTower", "architecture.vision"],
    message: "Trained needs a model with a vision tower",
    cel: || "self.visionTower == 'Frozen' || !has(self.architecture) || has(self.architecture.vision)".into(),
    allowed: Some("Frozen"),
};

/// Training of a vision tower below an adapter.
pub(crate) const TRAINED_TOWER_ADAPTER: &ConflictRule = &ConflictRule {
    scope: "spec.model",
    at: "visionTower",
    reads: &["visionTower", "lora"],
    message: "below an adapter all weights are frozen: lora.vlmLora adapts the vision tower",
    cel: || "self.visionTower == 'Frozen' || !has(self.lora)".into(),
    allowed: Some("Frozen"),
};

/// Training of quantized weights.
pub(crate) const QUANTIZED_TRAINED: &ConflictRule = &ConflictRule {
    scope: "spec.model",
    at: "quantization",
    reads: &["quantization", "lora"],
    message: "quantized weights are frozen: model.lora must be given, full-parameter training needs 16 or 32 bits",
    cel: || "!has(self.quantization) || has(self.lora)".into(),
    allowed: None,
};

/// DoRA of quantized weights.
pub(crate) const QUANTIZED_DORA: &ConflictRule = &ConflictRule {
    scope: "spec.model",
    at: "lora.dora",
    reads: &["quantization", "lora.dora"],
    message: "DoRA of quantized weights is not sampled from yet: dora must be false",
    cel: || "!has(self.quantization) || !has(self.lora) || !self.lora.dora".into(),
    allowed: None,
};

/// Merged adapter of quantized weights.
pub(crate) const QUANTIZED_MERGED: &ConflictRule = &ConflictRule {
    scope: "spec.model",
    at: "lora.merge",
    reads: &["quantization", "lora.merge"],
    message: "the rollout folds no adapter into quantized weights: merge must not be true",
    cel: || "!has(self.quantization) || !has(self.lora) || !has(self.lora.merge) || !self.lora.merge".into(),
    allowed: None,
};

/// Quantization of experts' weights.
pub(crate) const QUANTIZED_EXPERTS: &ConflictRule = &ConflictRule {
    scope: "spec.model",
    at: "quantization",
    reads: &["quantization", "architecture.experts"],
    message: "experts cannot be quantized yet",
    cel: || "!has(self.quantization) || !has(self.architecture) || !has(self.architecture.experts)".into(),
    allowed: None,
};

/// Tensor parallelism of a rollout with quantized weights.
pub(crate) const QUANTIZED_ROLLOUT_TP: &ConflictRule = &ConflictRule {
    scope: "spec",
    at: "workers.mesh.rolloutTp",
    reads: &["model.quantization", "workers.mesh.rolloutTp"],
    message: "with model.quantization each rank samples alone: rolloutTp must be 1",
    cel: || "!has(self.model.quantization) || self.workers.mesh.rolloutTp == 1".into(),
    allowed: None,
};

/// Dropout of an adapter with losses of whole completions.
pub(crate) const SCORED_DROPOUT: &ConflictRule = &ConflictRule {
    scope: "spec",
    at: "model.lora.dropout",
    reads: &["model.lora.dropout", "algorithm.kind"],
    message: "preferences and reward models are learned without dropout: scores are computed before their gradient",
    cel: || {
        format!(
            "!({}) || !has(self.model.lora) || self.model.lora.dropout == 0.0",
            cel_learns_from("self.algorithm", LearnsFrom::scores_completions)
        )
    },
    allowed: Some("0"),
};

/// Reward-model training that starts from an adapter in a folder.
pub(crate) const REWARD_MODEL_ADAPTER: &ConflictRule = &ConflictRule {
    scope: "spec",
    at: "model.lora.adapterPath",
    reads: &["model.lora.adapterPath", "algorithm.kind"],
    message: "a reward model begins with a fresh adapter: remove adapterPath",
    cel: || {
        format!(
            "!({}) || !has(self.model.lora) || !has(self.model.lora.adapterPath)",
            cel_learns_from("self.algorithm", LearnsFrom::trains_reward_model)
        )
    },
    allowed: None,
};

/// Limit of the number of training prompts of a data set that is read as a stream.
pub(crate) const STREAM_LIMIT: &ConflictRule = &ConflictRule {
    scope: "spec.data",
    at: "maxTrainPrompts",
    reads: &["streaming", "maxTrainPrompts"],
    message: "maxTrainPrompts and streaming exclude each other: training.steps says where a stream ends",
    cel: || "!has(self.streaming) || !has(self.maxTrainPrompts)".into(),
    allowed: None,
};

/// Updates of a reference that is the model below the adapter.
pub(crate) const REFERENCE_SYNC_ADAPTER: &ConflictRule = &ConflictRule {
    scope: "spec",
    at: "algorithm.referenceSync",
    reads: &["algorithm.referenceSync", "model.lora"],
    message: "with model.lora the reference is the model without its adapter, whose weights never change: remove \
              referenceSync or model.lora",
    cel: || "!has(self.algorithm.referenceSync) || !has(self.model.lora)".into(),
    allowed: None,
};

/// Offload of a reference that is the model below the adapter.
pub(crate) const REFERENCE_OFFLOAD_ADAPTER: &ConflictRule = &ConflictRule {
    scope: "spec",
    at: "training.roles.reference.offloadParameters",
    reads: &["training.roles.reference.offloadParameters", "model.lora"],
    message: "with model.lora the reference has no weights of its own: remove its offloadParameters",
    cel: || {
        let has_field = cel_has("self.training.roles.reference.offloadParameters");
        format!("!({has_field}) || !has(self.model.lora)")
    },
    allowed: None,
};

/// Compute dtype of a reference that is the model below the adapter.
pub(crate) const REFERENCE_PRECISION_ADAPTER: &ConflictRule = &ConflictRule {
    scope: "spec",
    at: "training.roles.reference.precision",
    reads: &["training.roles.reference.precision", "model.lora"],
    message: "with model.lora the reference has no weights of its own: remove its precision",
    cel: || format!("!({}) || !has(self.model.lora)", cel_has("self.training.roles.reference.precision")),
    allowed: None,
};

/// Compute dtype of a critic that is an adapter.
pub(crate) const CRITIC_PRECISION_ADAPTER: &ConflictRule = &ConflictRule {
    scope: "spec",
    at: "training.roles.critic.precision",
    reads: &["training.roles.critic.precision", "model.lora"],
    message: "with model.lora the critic computes with the actor's base weights: remove its precision",
    cel: || format!("!({}) || !has(self.model.lora)", cel_has("self.training.roles.critic.precision")),
    allowed: None,
};

/// FSDP degree of a reference policy without frozen weights of its own.
pub(crate) const REFERENCE_SHARDS: &ConflictRule = &ConflictRule {
    scope: "spec",
    at: "workers.mesh.referenceDpShard",
    reads: &["workers.mesh.referenceDpShard", "model.lora", "algorithm.kind"],
    message: "without a frozen reference there is nothing to shard: remove referenceDpShard with model.lora, SFT, \
              RewardModel and ProcessReward",
    cel: || {
        let none = cel_learns_from("self.algorithm", LearnsFrom::never_reads_reference);
        format!("!has(self.workers.mesh.referenceDpShard) || (!has(self.model.lora) && !({none}))")
    },
    allowed: None,
};

/// FSDP degree of a critic without weights of its own.
pub(crate) const CRITIC_SHARDS: &ConflictRule = &ConflictRule {
    scope: "spec",
    at: "workers.mesh.criticDpShard",
    reads: &["workers.mesh.criticDpShard", "model.lora", "algorithm.advantage.estimator", "algorithm.kind"],
    message: "criticDpShard needs a critic with weights of its own: an estimator that reads values, such as Gae, and no \
              model.lora",
    cel: || {
        let estimator = cel_estimator("self.algorithm");
        format!(
            "!has(self.workers.mesh.criticDpShard) || \
             (!has(self.model.lora) && {estimator} in {})",
            cel_list(&with_critic())
        )
    },
    allowed: None,
};
