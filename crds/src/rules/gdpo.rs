//! Rules of the estimator `Gdpo`. It normalizes the values of each reward function separately, so whatever
//! changes only the sum of the rewards has no effect on it.

use super::algorithm::{cel_kl_placement, kl_placement};
use super::{Check, Rule, cel_estimator, cel_kinds, cel_name, estimator, preset_of};
use crate::spec::{AdvantageEstimatorKind, KlPlacement, RLTrainingJobSpec};

fn is_gdpo(spec: &RLTrainingJobSpec) -> bool {
    estimator(spec) == AdvantageEstimatorKind::Gdpo
}

fn cel_is_gdpo(algorithm: &str) -> String {
    format!("{} == {}", cel_estimator(algorithm), cel_name(&AdvantageEstimatorKind::Gdpo))
}

/// Whether the reward differs from the sum of the reward functions: it is clipped, or reduced by a penalty on
/// length, which may come from the preset.
fn are_shaped(spec: &RLTrainingJobSpec) -> bool {
    let overlong = spec.rewards.overlong.clone().or(preset_of(spec).overlong);
    spec.rewards.clip.is_some() || overlong.is_some_and(|overlong| overlong.penalty_factor > 0.0)
}

pub(super) const RULES: &[Rule] = &[
    Rule {
        scope: "spec.algorithm",
        at: "kl.placement",
        reads: &["kl.placement", "advantage.estimator", "kind", "preset"],
        message: "the estimator Gdpo reads the reward functions alone, not a KL in the reward: the placement must be Loss \
                  or None",
        cel: || format!("{} != 'Reward' || !({})", cel_kl_placement("self"), cel_is_gdpo("self")),
        holds: Check::Spec(|spec| kl_placement(spec) != KlPlacement::Reward || !is_gdpo(spec)),
        allowed: Some(|_| "Loss, None".into()),
    },
    Rule {
        scope: "spec",
        at: "rewards",
        reads: &["rewards.clip", "rewards.overlong", "algorithm.advantage.estimator", "algorithm.kind"],
        message: "the estimator Gdpo reads the reward functions alone: remove rewards.clip and rewards.overlong, which \
                  DAPO includes",
        cel: || {
            let is_preset = cel_kinds("self.algorithm", |kind| kind.preset(1).overlong.is_some());
            format!(
                "(!has(self.rewards.clip) && (has(self.rewards.overlong) ? self.rewards.overlong.penaltyFactor <= \
                 0.0 : !({is_preset}))) || !({})",
                cel_is_gdpo("self.algorithm")
            )
        },
        holds: Check::Spec(|spec| !are_shaped(spec) || !is_gdpo(spec)),
        allowed: None,
    },
];
