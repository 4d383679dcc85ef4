//! The rules of `spec.algorithm.loss`: every constant that is given must be one that the chosen loss uses.

use super::{Check, Rule, cel_effective, cel_list, preset_of};
use crate::spec::{LossAggregation, LossSpec, PolicyLossKind, RLTrainingJobSpec};

const CLIPPING: &[PolicyLossKind] = &[
    PolicyLossKind::Vanilla,
    PolicyLossKind::Gspo,
    PolicyLossKind::GeoMean,
    PolicyLossKind::Cispo,
    PolicyLossKind::DppoTv,
    PolicyLossKind::DppoKl,
    PolicyLossKind::ClipCov,
];
const PENALIZING: &[PolicyLossKind] = &[PolicyLossKind::Dro, PolicyLossKind::KlCov];
const COVARIANCE: &[PolicyLossKind] = &[PolicyLossKind::ClipCov, PolicyLossKind::KlCov];
const DUAL_CLIPPING: &[PolicyLossKind] =
    &[PolicyLossKind::Vanilla, PolicyLossKind::DppoTv, PolicyLossKind::DppoKl];
fn policy(spec: &RLTrainingJobSpec) -> PolicyLossKind {
    loss(spec).policy.unwrap_or_else(|| preset_of(spec).policy)
}

fn cel_policy() -> String {
    cel_effective("self", "loss", "policy", |preset| preset.policy)
}

fn cel_aggregation() -> String {
    cel_effective("self", "loss", "aggregation", |preset| preset.aggregation)
}

fn loss(spec: &RLTrainingJobSpec) -> LossSpec {
    spec.algorithm.loss.clone().unwrap_or_default()
}

/// A rule that a constant of the loss is given only with a policy loss that uses it.
fn cel_only_with(field: &str, policies: &[PolicyLossKind]) -> String {
    format!("!has(self.loss) || !has(self.loss.{field}) || {} in {}", cel_policy(), cel_list(policies))
}

pub(super) const RULES: &[Rule] = &[
    Rule {
        scope: "spec.algorithm",
        at: "loss.clipLow",
        reads: &["loss.clipLow", "loss.policy", "kind"],
        message: "clipLow is not used by the policy losses Sapo, Gpg, Dro and KlCov",
        cel: || cel_only_with("clipLow", CLIPPING),
        holds: Check::Spec(|spec| loss(spec).clip_low.is_none() || CLIPPING.contains(&policy(spec))),
        allowed: None,
    },
    Rule {
        scope: "spec.algorithm",
        at: "loss.clipHigh",
        reads: &["loss.clipHigh", "loss.policy", "kind"],
        message: "clipHigh is not used by the policy losses Sapo, Gpg, Dro and KlCov",
        cel: || cel_only_with("clipHigh", CLIPPING),
        holds: Check::Spec(|spec| loss(spec).clip_high.is_none() || CLIPPING.contains(&policy(spec))),
        allowed: None,
    },
    Rule {
        scope: "spec.algorithm",
        at: "loss.dualClip",
        reads: &["loss.dualClip", "loss.policy", "kind"],
        message: "dualClip is used only by the policy losses Vanilla, DppoTv and DppoKl",
        cel: || cel_only_with("dualClip", DUAL_CLIPPING),
        holds: Check::Spec(|spec| loss(spec).dual_clip.is_none() || DUAL_CLIPPING.contains(&policy(spec))),
        allowed: None,
    },
    Rule {
        scope: "spec.algorithm",
        at: "loss.sapoTauPositive",
        reads: &["loss.sapoTauPositive", "loss.policy", "kind"],
        message: "sapoTauPositive is used only by the policy loss Sapo",
        cel: || cel_only_with("sapoTauPositive", &[PolicyLossKind::Sapo]),
        holds: Check::Spec(|spec| {
            loss(spec).sapo_tau_positive.is_none() || policy(spec) == PolicyLossKind::Sapo
        }),
        allowed: None,
    },
    Rule {
        scope: "spec.algorithm",
        at: "loss.sapoTauNegative",
        reads: &["loss.sapoTauNegative", "loss.policy", "kind"],
        message: "sapoTauNegative is used only by the policy loss Sapo",
        cel: || cel_only_with("sapoTauNegative", &[PolicyLossKind::Sapo]),
        holds: Check::Spec(|spec| {
            loss(spec).sapo_tau_negative.is_none() || policy(spec) == PolicyLossKind::Sapo
        }),
        allowed: None,
    },
    Rule {
        scope: "spec.algorithm",
        at: "loss.covarianceRatio",
        reads: &["loss.covarianceRatio", "loss.policy", "kind"],
        message: "covarianceRatio is used only by the policy losses ClipCov and KlCov",
        cel: || cel_only_with("covarianceRatio", COVARIANCE),
        holds: Check::Spec(|spec| {
            loss(spec).covariance_ratio.is_none() || COVARIANCE.contains(&policy(spec))
        }),
        allowed: None,
    },
    Rule {
        scope: "spec.algorithm",
        at: "loss.penalty",
        reads: &["loss.penalty", "loss.policy", "kind"],
        message: "penalty is used only by the policy losses Dro and KlCov",
        cel: || cel_only_with("penalty", PENALIZING),
        holds: Check::Spec(|spec| loss(spec).penalty.is_none() || PENALIZING.contains(&policy(spec))),
        allowed: None,
    },
    Rule {
        scope: "spec.algorithm",
        at: "loss.aggregation",
        reads: &["loss.aggregation", "loss.policy", "kind"],
        message: "the policy losses Gspo, Sapo and GeoMean are defined with SequenceMeanTokenMean alone",
        cel: || {
            format!(
                "!has(self.loss) || !has(self.loss.aggregation) || \
                 self.loss.aggregation == 'SequenceMeanTokenMean' || !({} in {})",
                cel_policy(),
                cel_list(PolicyLossKind::BY_SEQUENCE)
            )
        },
        holds: Check::Spec(|spec| {
            let other =
                loss(spec).aggregation.is_some_and(|given| given != LossAggregation::SequenceMeanTokenMean);
            !other || !PolicyLossKind::BY_SEQUENCE.contains(&policy(spec))
        }),
        allowed: Some(|_| "SequenceMeanTokenMean".into()),
    },
    Rule {
        scope: "spec.algorithm",
        at: "loss.normalizationTokens",
        reads: &["loss.normalizationTokens", "loss.aggregation", "kind"],
        message: "normalizationTokens is used only by the aggregation SequenceMeanTokenSumNorm",
        cel: || {
            format!(
                "!has(self.loss) || !has(self.loss.normalizationTokens) || {} == 'SequenceMeanTokenSumNorm'",
                cel_aggregation()
            )
        },
        holds: Check::Spec(|spec| {
            let loss = loss(spec);
            let aggregation = loss.aggregation.unwrap_or_else(|| preset_of(spec).aggregation);
            loss.normalization_tokens.is_none() || aggregation == LossAggregation::SequenceMeanTokenSumNorm
        }),
        allowed: None,
    },
];
