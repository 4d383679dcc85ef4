//! Rules of `spec.algorithm.preference`. [`super::parameters`] checks that parameters belong to the chosen
//! loss.

use rlt_algorithms::declaration::{Family, Parameters};
use rlt_algorithms::preference::PreferenceLoss;

use super::super::{Check, Rule, cel_effective, cel_learns_from, cel_list, learns_from, preset_of};
use crate::spec::{LearnsFrom, PreferenceDivergence, PreferenceLossKind, PreferenceSpec, RLTrainingJobSpec};

pub(in crate::rules) fn loss(spec: &RLTrainingJobSpec) -> PreferenceLossKind {
    given(spec, |preference| preference.loss).unwrap_or_else(|| preset_of(spec).preference)
}

pub(in crate::rules) fn cel_loss() -> String {
    cel_effective("self", "preference", "loss", |preset| preset.preference)
}

fn given<T>(spec: &RLTrainingJobSpec, field: fn(&PreferenceSpec) -> Option<T>) -> Option<T> {
    spec.algorithm.preference.as_ref().and_then(field)
}

fn is_labels(from: LearnsFrom) -> bool {
    from == LearnsFrom::Labels
}

/// Returns all losses of a pair: the single one, or those of the list.
pub(in crate::rules) fn all_losses(spec: &RLTrainingJobSpec) -> Vec<PreferenceLossKind> {
    let several = spec.algorithm.preference.as_ref().map_or(&[][..], |preference| &preference.losses);
    if several.is_empty() { vec![loss(spec)] } else { several.iter().map(|one| one.loss).collect() }
}

/// CEL condition that all losses are among `kinds`.
fn cel_all_in(kinds: &[PreferenceLossKind]) -> String {
    let kinds = cel_list(kinds);
    let losses = "self.preference.losses";
    format!("(has({losses}) ? {losses}.all(one, one.loss in {kinds}) : {} in {kinds})", cel_loss())
}

/// Returns the losses that compare the completions of one pair.
fn of_pairs() -> Vec<PreferenceLossKind> {
    let compares_pairs =
        |kind: &PreferenceLossKind| !PreferenceLoss::resolve(*kind, &Parameters::default()).sorts_update();
    PreferenceLossKind::ALL.iter().copied().filter(compares_pairs).collect()
}

/// Whether a parameter of a single loss is given outside of the list of losses.
fn has_parameters(preference: &PreferenceSpec) -> bool {
    let mut all = PreferenceLossKind::all_parameters().into_iter();
    all.any(|parameter| preference.parameters.get(parameter).is_some())
}

/// Returns the losses that are computed from the difference of two scores.
fn with_divergence() -> Vec<PreferenceLossKind> {
    let takes =
        |kind: &PreferenceLossKind| PreferenceLoss::resolve(*kind, &Parameters::default()).takes_divergence();
    PreferenceLossKind::ALL.iter().copied().filter(takes).collect()
}

pub(in crate::rules) const RULES: &[Rule] = &[
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
            "preference.losses",
            "preference.divergence",
            "preference.lengthDesensitization",
            "preference.weighByPolicy",
            "preference.sftWeight",
            "kind",
        ],
        message: "KTO has no pairs: remove loss, losses, divergence, lengthDesensitization, weighByPolicy and sftWeight",
        cel: || {
            format!(
                "!({}) || !has(self.preference) || (!has(self.preference.loss) && \
                 !has(self.preference.losses) && !has(self.preference.divergence) && \
                 !has(self.preference.lengthDesensitization) && !has(self.preference.weighByPolicy) && \
                 !has(self.preference.sftWeight))",
                cel_learns_from("self", is_labels)
            )
        },
        holds: Check::Spec(|spec| {
            let preference = spec.algorithm.preference.clone().unwrap_or_default();
            !is_labels(learns_from(spec))
                || (preference.loss.is_none()
                    && preference.losses.is_empty()
                    && preference.divergence.is_none()
                    && preference.length_desensitization.is_none()
                    && preference.weigh_by_policy.is_none()
                    && preference.sft_weight.is_none())
        }),
        allowed: None,
    },
    Rule {
        scope: "spec.algorithm.preference",
        at: "losses",
        reads: &["losses", "loss"],
        message: "each item of losses has its own loss and parameters: remove loss and parameters outside of it",
        cel: || {
            let names = PreferenceLossKind::all_parameters().into_iter().map(|parameter| parameter.name);
            let given = ["loss"].into_iter().chain(names).map(|name| format!("!has(self.{name})"));
            format!("!has(self.losses) || ({})", given.collect::<Vec<_>>().join(" && "))
        },
        holds: Check::Spec(|spec| {
            let given = spec.algorithm.preference.as_ref().filter(|given| !given.losses.is_empty());
            given.is_none_or(|given| given.loss.is_none() && !has_parameters(given))
        }),
        allowed: None,
    },
    Rule {
        scope: "spec.algorithm",
        at: "preference.weighByPolicy",
        reads: &["preference.weighByPolicy", "preference.loss", "preference.losses", "kind"],
        message: "weighByPolicy weighs pairs, which Aot and AotUnpaired take apart: remove one of them",
        cel: || {
            format!(
                "!has(self.preference) || !has(self.preference.weighByPolicy) || \
                 !self.preference.weighByPolicy || {}",
                cel_all_in(&of_pairs())
            )
        },
        holds: Check::Spec(|spec| {
            let of_pairs = of_pairs();
            given(spec, |preference| preference.weigh_by_policy) != Some(true)
                || all_losses(spec).iter().all(|loss| of_pairs.contains(loss))
        }),
        allowed: None,
    },
    Rule {
        scope: "spec.algorithm",
        at: "preference",
        reads: &[
            "preference.desirableWeight",
            "preference.undesirableWeight",
            "preference.referencePoint",
            "kind",
        ],
        message: "desirableWeight, undesirableWeight and referencePoint are used only by the kind KTO",
        cel: || {
            format!(
                "{} || !has(self.preference) || \
                 (!has(self.preference.desirableWeight) && !has(self.preference.undesirableWeight) && \
                 !has(self.preference.referencePoint))",
                cel_learns_from("self", is_labels)
            )
        },
        holds: Check::Spec(|spec| {
            let is_given = given(spec, |preference| preference.desirable_weight).is_some()
                || given(spec, |preference| preference.undesirable_weight).is_some()
                || given(spec, |preference| preference.reference_point).is_some();
            is_labels(learns_from(spec)) || !is_given
        }),
        allowed: None,
    },
    Rule {
        scope: "spec.algorithm",
        at: "preference.divergence",
        reads: &["preference.divergence", "preference.loss", "preference.losses", "kind"],
        message: "a divergence other than ReverseKl needs losses of the difference of two scores",
        cel: || {
            format!(
                "!has(self.preference) || !has(self.preference.divergence) || \
                 self.preference.divergence == 'ReverseKl' || {}",
                cel_all_in(&with_divergence())
            )
        },
        holds: Check::Spec(|spec| {
            let divergence = given(spec, |preference| preference.divergence).unwrap_or_default();
            let with_divergence = with_divergence();
            divergence == PreferenceDivergence::ReverseKl
                || all_losses(spec).iter().all(|loss| with_divergence.contains(loss))
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
        reads: &["training.promptsPerStep", "algorithm.kind", "algorithm.preference.referencePoint"],
        message: "KTO compares completions with other prompts of the step: promptsPerStep must be at least 2",
        cel: || {
            let point = "self.algorithm.preference.referencePoint";
            format!(
                "self.training.promptsPerStep >= 2 || !({}) || \
                 (has(self.algorithm.preference) && has({point}) && !{point})",
                cel_learns_from("self.algorithm", is_labels)
            )
        },
        holds: Check::Spec(|spec| {
            spec.training.prompts_per_step >= 2
                || !is_labels(learns_from(spec))
                || given(spec, |preference| preference.reference_point) == Some(false)
        }),
        allowed: Some(|_| "at least 2, or preference.referencePoint false".into()),
    },
];
