//! Rules of `spec.algorithm.loss`. [`super::parameters`] checks that parameters belong to the chosen loss.

use rlt_algorithms::declaration::{Family, Parameters};
use rlt_algorithms::loss::{ClipCov, PolicyLoss};

use super::super::{Check, Rule, cel_effective, cel_kinds, cel_list, preset_of};
use crate::spec::{LossAggregation, LossSpec, PolicyLossKind, RLTrainingJobSpec};

pub(in crate::rules) fn policy(spec: &RLTrainingJobSpec) -> PolicyLossKind {
    loss(spec).policy.unwrap_or_else(|| preset_of(spec).policy)
}

pub(in crate::rules) fn cel_policy() -> String {
    cel_effective("self", "loss", "policy", |preset| preset.policy)
}

fn cel_aggregation() -> String {
    cel_effective("self", "loss", "aggregation", |preset| preset.aggregation)
}

fn loss(spec: &RLTrainingJobSpec) -> LossSpec {
    spec.algorithm.loss.clone().unwrap_or_default()
}

/// Returns the policy losses that prescribe their aggregation.
fn of_one_aggregation() -> Vec<PolicyLossKind> {
    let own = |kind: PolicyLossKind| PolicyLoss::resolve(kind, &Parameters::default()).aggregation();
    PolicyLossKind::ALL.iter().copied().filter(|kind| own(*kind).is_some()).collect()
}

pub(in crate::rules) const RULES: &[Rule] = &[
    Rule {
        scope: "spec.algorithm",
        at: "loss.covarianceLow",
        reads: &["loss.covarianceLow", "loss.covarianceHigh", "loss.policy", "kind"],
        message: "covarianceLow (by default 1) must be below covarianceHigh (by default 5)",
        cel: || {
            format!(
                "!has(self.loss) || {} != 'ClipCov' || (has(self.loss.covarianceLow) ? self.loss.covarianceLow : \
                 1.0) < (has(self.loss.covarianceHigh) ? self.loss.covarianceHigh : 5.0)",
                cel_policy()
            )
        },
        holds: Check::Spec(|spec| match PolicyLoss::resolve(policy(spec), &loss(spec).parameters) {
            PolicyLoss::ClipCov(ClipCov { lower, upper, .. }) => lower < upper,
            _ => true,
        }),
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
                cel_list(&of_one_aggregation())
            )
        },
        holds: Check::Spec(|spec| {
            let other =
                loss(spec).aggregation.is_some_and(|given| given != LossAggregation::SequenceMeanTokenMean);
            !other || !of_one_aggregation().contains(&policy(spec))
        }),
        allowed: Some(|_| "SequenceMeanTokenMean".into()),
    },
    Rule {
        scope: "spec.algorithm",
        at: "loss.positiveThreshold",
        reads: &["loss.positiveThreshold", "loss.positiveCoefficient", "kind"],
        message: "positiveThreshold needs a positiveCoefficient above 0, which VAPO includes",
        cel: || {
            let is_preset = cel_kinds("self", |kind| kind.preset(1).positive_coefficient > 0.0);
            format!(
                "!has(self.loss) || !has(self.loss.positiveThreshold) || \
                 (has(self.loss.positiveCoefficient) ? self.loss.positiveCoefficient > 0.0 : {is_preset})"
            )
        },
        holds: Check::Spec(|spec| {
            let loss = loss(spec);
            let coefficient =
                loss.positive_coefficient.unwrap_or_else(|| preset_of(spec).positive_coefficient);
            loss.positive_threshold.is_none() || coefficient > 0.0
        }),
        allowed: None,
    },
    Rule {
        scope: "spec.algorithm",
        at: "loss.normalizationTokens",
        reads: &["loss.normalizationTokens", "loss.aggregation", "kind", "preset"],
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
