//! Rules of `spec.model.lora`.

use crate::conflicts::{
    ADAPTED_TOWER, DORA_DROPOUT, PARAMETERS_DORA, PARAMETERS_DROPOUT, PARAMETERS_ORTHOGONAL, RESIZED,
    UNMERGED,
};
use crate::rules::{Check, Rule, conflict};
use crate::spec::{LoraInit, LoraSpec, RLTrainingJobSpec};

fn lora(spec: &RLTrainingJobSpec, holds: fn(&LoraSpec) -> bool) -> bool {
    spec.model.lora.as_ref().is_none_or(holds)
}

fn is_all_linear(lora: &LoraSpec) -> bool {
    lora.target_modules.len() == 1 && lora.target_modules[0] == "all-linear"
}

pub(in crate::rules) const RULES: &[Rule] = &[
    Rule {
        scope: "spec.model.lora",
        at: "targetModules",
        reads: &["targetModules"],
        message: "all-linear stands for every linear layer and must stand alone",
        cel: || "!('all-linear' in self.targetModules) || self.targetModules.size() == 1".into(),
        holds: Check::Spec(|spec| {
            lora(spec, |lora| {
                !lora.target_modules.iter().any(|target| target == "all-linear")
                    || lora.target_modules.len() == 1
            })
        }),
        allowed: None,
    },
    Rule {
        scope: "spec.model.lora",
        at: "targetPattern",
        reads: &["targetPattern", "targetModules"],
        message: "give targetModules or targetPattern, not both",
        cel: || "!has(self.targetPattern) || self.targetModules == ['all-linear']".into(),
        holds: Check::Spec(|spec| lora(spec, |lora| lora.target_pattern.is_none() || is_all_linear(lora))),
        allowed: None,
    },
    Rule {
        scope: "spec.model.lora",
        at: "targetModules",
        reads: &["targetModules", "targetParameters"],
        message: "targetModules may be empty only with targetParameters",
        cel: || "self.targetModules.size() > 0 || self.targetParameters.size() > 0".into(),
        holds: Check::Spec(|spec| {
            lora(spec, |lora| !lora.target_modules.is_empty() || !lora.target_parameters.is_empty())
        }),
        allowed: None,
    },
    conflict(PARAMETERS_DROPOUT),
    conflict(PARAMETERS_ORTHOGONAL),
    Rule {
        scope: "spec.model.lora",
        at: "init",
        reads: &["init", "adapterPath"],
        message: "adapterPath names an adapter that has been initialized: init has no effect with it",
        cel: || "!has(self.adapterPath) || self.init == 'Peft'".into(),
        holds: Check::Spec(|spec| {
            lora(spec, |lora| lora.adapter_path.is_none() || lora.init == LoraInit::Peft)
        }),
        allowed: Some(|_| "Peft".into()),
    },
    Rule {
        scope: "spec.model.lora",
        at: "excludePattern",
        reads: &["excludePattern", "excludeModules"],
        message: "give excludeModules or excludePattern, not both",
        cel: || "!has(self.excludePattern) || self.excludeModules.size() == 0".into(),
        holds: Check::Spec(|spec| {
            lora(spec, |lora| lora.exclude_pattern.is_none() || lora.exclude_modules.is_empty())
        }),
        allowed: None,
    },
    Rule {
        scope: "spec.model.lora",
        at: "rank",
        reads: &["rank", "init"],
        message: "init Orthogonal needs an even rank",
        cel: || "self.init != 'Orthogonal' || self.rank % 2 == 0".into(),
        holds: Check::Spec(|spec| {
            lora(spec, |lora| lora.init != LoraInit::Orthogonal || lora.rank.is_multiple_of(2))
        }),
        allowed: None,
    },
    conflict(PARAMETERS_DORA),
    conflict(DORA_DROPOUT),
    conflict(RESIZED),
    conflict(ADAPTED_TOWER),
    conflict(UNMERGED),
];
