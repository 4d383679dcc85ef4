//! Rules of `spec.algorithm` except its loss: fields that are given must be used by the chosen parts.

use super::{
    Check, Rule, cel_effective, cel_kinds, cel_learns_from, cel_list, cel_name, cel_samples_nothing,
    learns_from, preset_of,
};
use rlt_algorithms::advantage::{AdvantageEstimator, EstimatorInput};
use rlt_algorithms::declaration::{Family, Parameters};

use crate::spec::{
    AdvantageEstimatorKind, KlPlacement, KlSpec, LearnsFrom, PresetProject, RLTrainingJobSpec, RejectionSpec,
    RejectionStatistic, ReweightingMethod,
};

const K1: &[RejectionStatistic] =
    &[RejectionStatistic::TokenK1, RejectionStatistic::SequenceSumK1, RejectionStatistic::SequenceMeanK1];

/// Returns an estimator with default parameters, on which its inputs do not depend.
fn formula(kind: AdvantageEstimatorKind) -> AdvantageEstimator {
    AdvantageEstimator::resolve(kind, &Parameters::default())
}

fn estimators(which: impl Fn(&AdvantageEstimator) -> bool) -> Vec<AdvantageEstimatorKind> {
    AdvantageEstimatorKind::ALL.iter().copied().filter(|kind| which(&formula(*kind))).collect()
}

/// Returns the estimators that need a critic.
pub(crate) fn with_critic() -> Vec<AdvantageEstimatorKind> {
    estimators(|estimator| estimator.reads(EstimatorInput::Values))
}

pub(crate) fn estimator(spec: &RLTrainingJobSpec) -> AdvantageEstimatorKind {
    let given = spec.algorithm.advantage.as_ref().and_then(|advantage| advantage.estimator);
    given.unwrap_or_else(|| preset_of(spec).estimator)
}

pub(crate) fn cel_estimator(algorithm: &str) -> String {
    cel_effective(algorithm, "advantage", "estimator", |preset| preset.estimator)
}

fn kl(spec: &RLTrainingJobSpec) -> KlSpec {
    spec.algorithm.kl.clone().unwrap_or_default()
}

/// Returns the placement of the KL that is in effect: the given one, or the preset's.
pub(super) fn kl_placement(spec: &RLTrainingJobSpec) -> KlPlacement {
    kl(spec).placement.unwrap_or_else(|| preset_of(spec).kl_placement)
}

/// CEL expression of the placement of the KL that is in effect, in the section at the path `algorithm`.
pub(super) fn cel_kl_placement(algorithm: &str) -> String {
    cel_effective(algorithm, "kl", "placement", |preset| preset.kl_placement)
}

fn rejection(spec: &RLTrainingJobSpec, holds: fn(&RejectionSpec) -> bool) -> bool {
    let correction = spec.algorithm.importance_correction.as_ref();
    correction.and_then(|correction| correction.rejection.as_ref()).is_none_or(holds)
}

pub(super) const RULES: &[Rule] = &[
    Rule {
        scope: "spec.algorithm",
        at: "preset",
        reads: &["preset", "kind"],
        message: "this project has no defaults for this kind: verl has some for PPO, GRPO, RLOO, ReinforcePlusPlus and \
                  ReMax, trl for SFT, GRPO, DPO, KTO and RewardModel",
        cel: || {
            let fits = |project: PresetProject| {
                let kinds = cel_list(project.kinds());
                format!("self.preset == {} && self.kind in {kinds}", cel_name(&project))
            };
            let fits: Vec<_> = PresetProject::ALL.into_iter().map(fits).collect();
            format!("!has(self.preset) || {}", fits.join(" || "))
        },
        holds: Check::Spec(|spec| {
            let algorithm = &spec.algorithm;
            algorithm.preset.is_none_or(|project| project.kinds().contains(&algorithm.kind))
        }),
        allowed: Some(|spec| {
            let fits = |project: &PresetProject| project.kinds().contains(&spec.algorithm.kind);
            let names: Vec<_> =
                PresetProject::ALL.into_iter().filter(fits).map(PresetProject::name).collect();
            if names.is_empty() { "no preset".into() } else { names.join(", ") }
        }),
    },
    Rule {
        scope: "spec.algorithm",
        at: "kind",
        reads: &[
            "kind",
            "advantage",
            "critic",
            "loss",
            "kl",
            "importanceCorrection",
            "dynamicSampling",
            "reweighting",
        ],
        message: "SFT, preference training and reward models use no advantage, critic, loss, kl, importanceCorrection, dynamicSampling or \
                  reweighting: remove them",
        cel: || {
            format!(
                "(!has(self.advantage) && !has(self.critic) && !has(self.loss) && !has(self.kl) && \
                 !has(self.importanceCorrection) && !has(self.dynamicSampling) && !has(self.reweighting)) || !({})",
                cel_learns_from("self", LearnsFrom::updates_once)
            )
        },
        holds: Check::Spec(|spec| {
            let algorithm = &spec.algorithm;
            !learns_from(spec).updates_once()
                || (algorithm.advantage.is_none()
                    && algorithm.critic.is_none()
                    && algorithm.loss.is_none()
                    && algorithm.kl.is_none()
                    && algorithm.importance_correction.is_none()
                    && algorithm.dynamic_sampling.is_none()
                    && algorithm.reweighting.is_none())
        }),
        allowed: None,
    },
    Rule {
        scope: "spec.algorithm.reweighting",
        at: "power",
        reads: &["power", "method"],
        message: "power is the exponent of the method Pow alone",
        cel: || "!has(self.power) || self.method == 'Pow'".into(),
        holds: Check::Spec(|spec| {
            spec.algorithm.reweighting.is_none_or(|reweighting| {
                reweighting.power.is_none() || reweighting.method == ReweightingMethod::Pow
            })
        }),
        allowed: None,
    },
    Rule {
        scope: "spec.algorithm",
        at: "coldStart",
        reads: &["kind", "coldStart"],
        message: "a cold start comes before kinds that sample completions: remove coldStart",
        cel: || format!("!has(self.coldStart) || !({})", cel_samples_nothing("self")),
        holds: Check::Spec(|spec| spec.algorithm.cold_start.is_none() || spec.algorithm.kind.samples()),
        allowed: None,
    },
    Rule {
        scope: "spec.algorithm",
        at: "critic",
        reads: &["critic", "advantage.estimator", "kind"],
        message: "a critic is used only with an estimator that reads its values, such as Gae, which PPO includes",
        cel: || format!("!has(self.critic) || {} in {}", cel_estimator("self"), cel_list(&with_critic())),
        holds: Check::Spec(|spec| {
            spec.algorithm.critic.is_none() || with_critic().contains(&estimator(spec))
        }),
        allowed: None,
    },
    Rule {
        scope: "spec",
        at: "rollout.samplesPerPrompt",
        reads: &["rollout.samplesPerPrompt", "algorithm.advantage.estimator", "algorithm.kind"],
        message: "an estimator that compares the samples of a prompt needs samplesPerPrompt of at least 2",
        cel: || {
            format!(
                "self.rollout.samplesPerPrompt >= 2 || {} || !({} in {})",
                cel_samples_nothing("self.algorithm"),
                cel_estimator("self.algorithm"),
                cel_list(&estimators(AdvantageEstimator::compares_samples))
            )
        },
        holds: Check::Spec(|spec| {
            !spec.algorithm.kind.samples()
                || spec.rollout.samples_per_prompt >= 2
                || !formula(estimator(spec)).compares_samples()
        }),
        allowed: Some(|_| "2 to 4096".into()),
    },
    Rule {
        scope: "spec",
        at: "rollout.samplesPerPrompt",
        reads: &["rollout.samplesPerPrompt", "algorithm.dynamicSampling", "algorithm.kind"],
        message: "dynamicSampling, which DAPO includes, needs samplesPerPrompt of at least 2",
        cel: || {
            let is_preset = cel_kinds("self.algorithm", |kind| kind.preset(1).dynamic_sampling.is_some());
            format!(
                "self.rollout.samplesPerPrompt >= 2 || (!has(self.algorithm.dynamicSampling) && !({is_preset}))"
            )
        },
        holds: Check::Spec(|spec| {
            spec.rollout.samples_per_prompt >= 2
                || spec
                    .algorithm
                    .dynamic_sampling
                    .as_ref()
                    .or(preset_of(spec).dynamic_sampling.as_ref())
                    .is_none()
        }),
        allowed: Some(|_| "2 to 4096".into()),
    },
    Rule {
        scope: "spec.algorithm",
        at: "kl",
        reads: &["kl.estimator", "kl.coefficient", "kl.adaptive", "kl.placement", "kind", "preset"],
        message: "estimator, coefficient and adaptive need a placement of the KL other than None",
        cel: || {
            format!(
                "!has(self.kl) || !(has(self.kl.estimator) || has(self.kl.coefficient) || has(self.kl.adaptive)) || \
                 {} != 'None'",
                cel_kl_placement("self")
            )
        },
        holds: Check::Spec(|spec| {
            let kl = kl(spec);
            let is_set = kl.estimator.is_some() || kl.coefficient.is_some() || kl.adaptive.is_some();
            !is_set || kl_placement(spec) != KlPlacement::None
        }),
        allowed: None,
    },
    Rule {
        scope: "spec.algorithm.importanceCorrection",
        at: "lowerThreshold",
        reads: &["lowerThreshold", "threshold"],
        message: "lowerThreshold must be below threshold",
        cel: || "!has(self.lowerThreshold) || self.lowerThreshold < self.threshold".into(),
        holds: Check::Spec(|spec| {
            spec.algorithm.importance_correction.as_ref().is_none_or(|correction| {
                correction.lower_threshold.is_none_or(|lower| lower < correction.threshold)
            })
        }),
        allowed: None,
    },
    Rule {
        scope: "spec.algorithm.importanceCorrection.rejection",
        at: "lower",
        reads: &["lower", "statistic"],
        message: "lower is used only by the statistics of K1, which are ratios",
        cel: || format!("!has(self.lower) || self.statistic in {}", cel_list(K1)),
        holds: Check::Spec(|spec| {
            rejection(spec, |rejection| rejection.lower.is_none() || K1.contains(&rejection.statistic))
        }),
        allowed: None,
    },
    Rule {
        scope: "spec.algorithm.importanceCorrection.rejection",
        at: "lower",
        reads: &["lower", "upper"],
        message: "lower must be below upper",
        cel: || "!has(self.lower) || self.lower < self.upper".into(),
        holds: Check::Spec(|spec| {
            rejection(spec, |rejection| rejection.lower.is_none_or(|lower| lower < rejection.upper))
        }),
        allowed: None,
    },
];
