//! The rules of `spec.model`.

use super::{Check, Rule, divisors};
use crate::spec::{ArchitectureSpec, LoraInit, LoraSpec, RLTrainingJobSpec, TokenizerSpec};

fn architecture(spec: &RLTrainingJobSpec, holds: fn(&ArchitectureSpec) -> bool) -> bool {
    spec.model.architecture.as_ref().is_none_or(holds)
}

fn tokenizer(spec: &RLTrainingJobSpec, holds: fn(&TokenizerSpec) -> bool) -> bool {
    spec.model.tokenizer.as_ref().is_none_or(holds)
}

fn lora(spec: &RLTrainingJobSpec, holds: fn(&LoraSpec) -> bool) -> bool {
    spec.model.lora.as_ref().is_none_or(holds)
}

fn is_all_linear(lora: &LoraSpec) -> bool {
    lora.target_modules.len() == 1 && lora.target_modules[0] == "all-linear"
}

pub(super) const RULES: &[Rule] = &[
    Rule {
        scope: "spec.model",
        at: "",
        reads: &["path", "hub", "architecture"],
        message: "exactly one of path, hub and architecture must be given",
        cel: || {
            "[has(self.path), has(self.hub), has(self.architecture)].filter(given, given).size() == 1".into()
        },
        holds: Check::Spec(|spec| {
            let model = &spec.model;
            let given = [model.path.is_some(), model.hub.is_some(), model.architecture.is_some()];
            given.into_iter().filter(|given| *given).count() == 1
        }),
        allowed: None,
    },
    Rule {
        scope: "spec.model",
        at: "tokenizer",
        reads: &["tokenizer", "architecture"],
        message: "a model built from its architecture needs a tokenizer",
        cel: || "!has(self.architecture) || has(self.tokenizer)".into(),
        holds: Check::Spec(|spec| spec.model.architecture.is_none() || spec.model.tokenizer.is_some()),
        allowed: None,
    },
    Rule {
        scope: "spec.model",
        at: "tokenizer.characters",
        reads: &["tokenizer.characters", "architecture"],
        message: "characters fit only a model built from its architecture",
        cel: || "has(self.architecture) || !has(self.tokenizer) || !has(self.tokenizer.characters)".into(),
        holds: Check::Spec(|spec| {
            spec.model.architecture.is_some() || tokenizer(spec, |tokenizer| tokenizer.characters.is_none())
        }),
        allowed: None,
    },
    Rule {
        scope: "spec.model.tokenizer",
        at: "",
        reads: &["path", "characters"],
        message: "exactly one of path and characters must be given",
        cel: || "has(self.path) != has(self.characters)".into(),
        holds: Check::Spec(|spec| {
            tokenizer(spec, |tokenizer| tokenizer.path.is_some() != tokenizer.characters.is_some())
        }),
        allowed: None,
    },
    Rule {
        scope: "spec.model.architecture",
        at: "numKvHeads",
        reads: &["numKvHeads", "numHeads"],
        message: "numKvHeads must divide numHeads",
        cel: || "!has(self.numKvHeads) || self.numHeads % self.numKvHeads == 0".into(),
        holds: Check::Spec(|spec| {
            architecture(spec, |shape| shape.num_heads.is_multiple_of(shape.kv_heads()))
        }),
        allowed: Some(|spec| {
            spec.model.architecture.as_ref().map_or_else(String::new, |shape| divisors(shape.num_heads))
        }),
    },
    Rule {
        scope: "spec.model.architecture",
        at: "numHeads",
        reads: &["numHeads", "hiddenSize", "headDim"],
        message: "numHeads must divide hiddenSize unless headDim is given",
        cel: || "has(self.headDim) || self.hiddenSize % self.numHeads == 0".into(),
        holds: Check::Spec(|spec| {
            architecture(spec, |shape| {
                shape.head_dim.is_some() || shape.hidden_size.is_multiple_of(shape.num_heads)
            })
        }),
        allowed: None,
    },
    Rule {
        scope: "spec.model.architecture",
        at: "headDim",
        reads: &["headDim", "hiddenSize", "numHeads"],
        message: "headDim, by default hiddenSize / numHeads, must be even: rotary embeddings turn pairs",
        cel: || "(has(self.headDim) ? self.headDim : self.hiddenSize / self.numHeads) % 2 == 0".into(),
        holds: Check::Spec(|spec| architecture(spec, |shape| shape.head_width().is_multiple_of(2))),
        allowed: None,
    },
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
        allowed: Some(|_| "Peft, Gaussian".into()),
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
];
