//! Rules of `spec.model.lora`.

use super::{Check, Rule};
use crate::spec::{DropoutPosition, LoraInit, LoraSpec, RLTrainingJobSpec};

fn lora(spec: &RLTrainingJobSpec, holds: fn(&LoraSpec) -> bool) -> bool {
    spec.model.lora.as_ref().is_none_or(holds)
}

fn is_all_linear(lora: &LoraSpec) -> bool {
    lora.target_modules.len() == 1 && lora.target_modules[0] == "all-linear"
}

pub(super) const RULES: &[Rule] = &[
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
        message: "targetModules may be empty only beside targetParameters",
        cel: || "self.targetModules.size() > 0 || self.targetParameters.size() > 0".into(),
        holds: Check::Spec(|spec| {
            lora(spec, |lora| !lora.target_modules.is_empty() || !lora.target_parameters.is_empty())
        }),
        allowed: None,
    },
    Rule {
        scope: "spec.model.lora",
        at: "dropout",
        reads: &["dropout", "targetParameters"],
        message: "adapters of targetParameters have no dropout",
        cel: || "self.targetParameters.size() == 0 || self.dropout == 0.0".into(),
        holds: Check::Spec(|spec| {
            lora(spec, |lora| lora.target_parameters.is_empty() || lora.dropout == 0.0)
        }),
        allowed: Some(|_| "0".into()),
    },
    Rule {
        scope: "spec.model.lora",
        at: "init",
        reads: &["init", "targetParameters"],
        message: "adapters of targetParameters do not start Orthogonal",
        cel: || "self.targetParameters.size() == 0 || self.init != 'Orthogonal'".into(),
        holds: Check::Spec(|spec| {
            lora(spec, |lora| lora.target_parameters.is_empty() || lora.init != LoraInit::Orthogonal)
        }),
        allowed: Some(|_| "Peft, Gaussian, Xavier".into()),
    },
    Rule {
        scope: "spec.model.lora",
        at: "init",
        reads: &["init", "adapterPath"],
        message: "the adapter of adapterPath has started already: init has no effect beside it",
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
    Rule {
        scope: "spec.model.lora",
        at: "dora",
        reads: &["dora", "targetParameters"],
        message: "adapters of targetParameters have no magnitudes",
        cel: || "self.targetParameters.size() == 0 || !self.dora".into(),
        holds: Check::Spec(|spec| lora(spec, |lora| lora.target_parameters.is_empty() || !lora.dora)),
        allowed: Some(|_| "false".into()),
    },
    Rule {
        scope: "spec.model.lora",
        at: "dropoutPosition",
        reads: &["dropoutPosition", "dora"],
        message: "DoRA drops before A: what it scales has no output of B alone",
        cel: || "!self.dora || self.dropoutPosition != 'After'".into(),
        holds: Check::Spec(|spec| {
            lora(spec, |lora| !lora.dora || lora.dropout_position != DropoutPosition::After)
        }),
        allowed: Some(|_| "Before".into()),
    },
    Rule {
        scope: "spec.model.lora",
        at: "resizeAdapter",
        reads: &["resizeAdapter", "adapterPath", "targetParameters"],
        message: "resizeAdapter needs an adapterPath, and adapters of targetParameters keep their ranks",
        cel: || "!self.resizeAdapter || (has(self.adapterPath) && self.targetParameters.size() == 0)".into(),
        holds: Check::Spec(|spec| {
            lora(spec, |lora| {
                !lora.resize_adapter || (lora.adapter_path.is_some() && lora.target_parameters.is_empty())
            })
        }),
        allowed: None,
    },
    Rule {
        scope: "spec.model",
        at: "lora.vlmLora",
        reads: &["lora.vlmLora", "architecture.vision"],
        message: "Vision and Both adapt the vision tower of a model that has one",
        cel: || {
            "!has(self.lora) || self.lora.vlmLora == 'Text' || !has(self.architecture) || \
             has(self.architecture.vision)"
                .into()
        },
        holds: Check::Spec(|spec| {
            let has_tower = spec.model.architecture.as_ref().is_none_or(|shape| shape.vision.is_some());
            has_tower || lora(spec, |lora| !lora.vlm_lora.adapts_vision())
        }),
        allowed: Some(|_| "Text".into()),
    },
    Rule {
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
        holds: Check::Spec(|spec| lora(spec, |lora| lora.merge != Some(false) || !lora.must_merge())),
        allowed: Some(|_| "true".into()),
    },
];
