//! Rules of `spec.model`.

pub(super) mod lora;
pub(super) mod quantization;

use super::rewards::is_plain_url;
use super::{Check, Rule, conflict, divisors};
use crate::conflicts::{TRAINED_NO_TOWER, TRAINED_TOWER_ADAPTER};
use crate::spec::{ArchitectureSpec, RLTrainingJobSpec, TokenizerSpec};

fn architecture(spec: &RLTrainingJobSpec, holds: fn(&ArchitectureSpec) -> bool) -> bool {
    spec.model.architecture.as_ref().is_none_or(holds)
}

fn tokenizer(spec: &RLTrainingJobSpec, holds: fn(&TokenizerSpec) -> bool) -> bool {
    spec.model.tokenizer.as_ref().is_none_or(holds)
}

/// Error for a mirror of the hub that is no plain address.
pub(super) const MIRROR: &str =
    "the address of the mirror must begin with http:// or https:// and hold no space and no password (`@`)";

/// Whether the address of a mirror, if there is one, holds no password.
pub(super) fn is_plain_mirror(endpoint: Option<&String>) -> bool {
    endpoint.is_none_or(|endpoint| is_plain_url(endpoint))
}

/// CEL form of [`is_plain_mirror`] for a section `hub`.
pub(super) fn cel_is_plain_mirror() -> String {
    "!has(self.endpoint) || self.endpoint.matches('^https?://[^/@ ]+(/[^@ ]*)?$')".into()
}

pub(super) const RULES: &[Rule] = &[
    Rule {
        scope: "spec.model.hub",
        at: "endpoint",
        reads: &["endpoint"],
        message: MIRROR,
        cel: cel_is_plain_mirror,
        holds: Check::Spec(|spec| {
            is_plain_mirror(spec.model.hub.as_ref().and_then(|hub| hub.endpoint.as_ref()))
        }),
        allowed: None,
    },
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
        scope: "spec.model",
        at: "adapters",
        reads: &["adapters", "architecture"],
        message: "adapters were trained on a model of path or hub: a new model has none",
        cel: || "!has(self.adapters) || self.adapters.size() == 0 || !has(self.architecture)".into(),
        holds: Check::Spec(|spec| spec.model.adapters.is_empty() || spec.model.architecture.is_none()),
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
    conflict(TRAINED_NO_TOWER),
    conflict(TRAINED_TOWER_ADAPTER),
    Rule {
        scope: "spec.model.architecture",
        at: "vision",
        reads: &["vision", "family"],
        message: "the families Qwen2Vl, Qwen25Vl and Qwen3Vl have a vision tower, and no others",
        cel: || "has(self.vision) == (self.family in ['Qwen2Vl', 'Qwen25Vl', 'Qwen3Vl'])".into(),
        holds: Check::Spec(|spec| {
            architecture(spec, |shape| shape.vision.is_some() == shape.family.has_vision())
        }),
        allowed: None,
    },
    Rule {
        scope: "spec.model.architecture.vision",
        at: "numHeads",
        reads: &["numHeads", "hiddenSize"],
        message: "numHeads must divide the tower's hiddenSize into heads of a multiple of 4",
        cel: || "self.hiddenSize % (4 * self.numHeads) == 0".into(),
        holds: Check::Spec(|spec| {
            architecture(spec, |shape| {
                shape.vision.is_none_or(|tower| tower.hidden_size.is_multiple_of(4 * tower.num_heads))
            })
        }),
        allowed: Some(|spec| {
            let tower = spec.model.architecture.as_ref().and_then(|shape| shape.vision);
            tower.map_or_else(String::new, |tower| divisors(tower.hidden_size / 4))
        }),
    },
];
