//! The rules of `spec.algorithm.preference`. That a given parameter is one of the chosen loss is in
//! [`super::parameters`].

use rlt_algorithms::declaration::{Family, Parameters};
use rlt_algorithms::preference::PreferenceLoss;

use super::{Check, Rule, cel_effective, cel_learns_from, cel_list, learns_from, preset_of};
use crate::spec::{LearnsFrom, PreferenceDivergence, PreferenceLossKind, PreferenceSpec, RLTrainingJobSpec};

pub(super) fn loss(spec: &RLTrainingJobSpec) -> PreferenceLossKind {
    given(spec, |preference| preference.loss).unwrap_or_else(|| preset_of(spec).preference)
}

pub(super) fn cel_loss() -> String {
    cel_effective("self", "preference", "loss", |preset| preset.preference)
}

fn given<T>(spec: &RLTrainingJobSpec, field: fn(&PreferenceSpec) -> Option<T>) -> Option<T> {
    spec.algorithm.preference.as_ref().and_then(field)
}

fn is_labels(from: LearnsFrom) -> bool {
    from == LearnsFrom::Labels
}

/// The losses of the difference of two scores.
fn with_divergence() -> Vec<PreferenceLossKind> {
    let takes =
        |kind: &PreferenceLossKind| PreferenceLoss::resolve(*kind, &Parameters::default()).takes_divergence();
    PreferenceLossKind::ALL.iter().copied().filter(takes).collect()
}

pub(super) const RULES: &[Rule] = &[
    Rule {
        scope: "spec.algorithm",
        at: "preference",
        reads: &["preference", "kind"],
        message: "preference is used only by the kinds DPO, SimPO, CPO, ORPO, KTO and OnlineDPO",
        cel: || format!("!has(self.preference) || {}", cel_learns_from("self", LearnsFrom::is_preference)),
        holds: Check::Spec(|spec| spec.algorithm.preference.is_none() || learns_from(spec).is_preference()),
        allowed: None,
    },
    Rule {
        scope: "spec.algorithm",
        at: "preference",
        reads: &[
            "preference.loss",
            "preference.divergence",
            "preference.lengthDesensitization",
            "preference.weighByPolicy",
            "preference.sftWeight",
            "kind",
        ],
        message: "KTO has no pairs: remove loss, divergence, lengthDesensitization, weighByPolicy and sftWeight",
        cel: || {
            format!(
                "!({}) || !has(self.preference) || (!has(self.preference.loss) && \
                 !has(self.preference.divergence) && !has(self.preference.lengthDesensitization) && \
                 !has(self.preference.weighByPolicy) && !has(self.preference.sftWeight))",
                cel_learns_from("self", is_labels)
            )
        },
        holds: Check::Spec(|spec| {
            let preference = spec.algorithm.preference.clone().unwrap_or_default();
            !is_labels(learns_from(spec))
                || (preference.loss.is_none()
                    && preference.divergence.is_none()
                    && preference.length_desensitization.is_none()
                    && preference.weigh_by_policy.is_none()
                    && preference.sft_weight.is_none())
        }),
        allowed: None,
    },
    Rule {
        scope: "spec.algorithm",
        at: "preference",
        reads: &["preference.desirableWeight", "preference.undesirableWeight", "kind"],
        message: "desirableWeight and undesirableWeight are used only by the kind KTO",
        cel: || {
            format!(
                "{} || !has(self.preference) || \
                 (!has(self.preference.desirableWeight) && !has(self.preference.undesirableWeight))",
                cel_learns_from("self", is_labels)
            )
        },
        holds: Check::Spec(|spec| {
            let is_given = given(spec, |preference| preference.desirable_weight).is_some()
                || given(spec, |preference| preference.undesirable_weight).is_some();
            is_labels(learns_from(spec)) || !is_given
        }),
        allowed: None,
    },
    Rule {
        scope: "spec.algorithm",
        at: "preference.divergence",
        reads: &["preference.divergence", "preference.loss", "kind"],
        message: "a divergence other than ReverseKl needs a loss of the difference of two scores",
        cel: || {
            format!(
                "!has(self.preference) || !has(self.preference.divergence) || \
                 self.preference.divergence == 'ReverseKl' || {} in {}",
                cel_loss(),
                cel_list(&with_divergence())
            )
        },
        holds: Check::Spec(|spec| {
            let divergence = given(spec, |preference| preference.divergence).unwrap_or_default();
            divergence == PreferenceDivergence::ReverseKl || with_divergence().contains(&loss(spec))
        }),
        allowed: None,
    },
    Rule {
        scope: "spec.algorithm",
        at: "preference.divergenceAlpha",
        reads: &["preference.divergenceAlpha", "preference.divergence"],
        message: "divergenceAlpha is used only by the divergence Alpha",
        cel: || {
            "!has(self.preference) || !has(self.preference.divergenceAlpha) || \
             (has(self.preference.divergence) && self.preference.divergence == 'Alpha')"
                .into()
        },
        holds: Check::Spec(|spec| {
            given(spec, |preference| preference.divergence_alpha).is_none()
                || given(spec, |preference| preference.divergence) == Some(PreferenceDivergence::Alpha)
        }),
        allowed: None,
    },
    Rule {
        scope: "spec",
        at: "training.promptsPerStep",
        reads: &["training.promptsPerStep", "algorithm.kind"],
        message: "KTO compares completions with other prompts of the step: promptsPerStep must be at least 2",
        cel: || {
            format!(
                "self.training.promptsPerStep >= 2 || !({})",
                cel_learns_from("self.algorithm", is_labels)
            )
        },
        holds: Check::Spec(|spec| spec.training.prompts_per_step >= 2 || !is_labels(learns_from(spec))),
        allowed: Some(|_| "at least 2".into()),
    },
];
