//! DAPO's dynamic sampling (arXiv 2503.14476), which filters the rollout groups of an update. DAPO's clip,
//! aggregation and overlong punishment are parameters of [`crate::loss`] and [`crate::reward`].

use crate::types::{RewardStatus, Rollout, RolloutGroup};

/// Whether dynamic sampling keeps a rollout group: true if `metric` differs between its samples, so that its
/// advantages do not vanish.
///
/// Samples of the `masked` statuses do not count. A group of one sample is kept, because it was never meant
/// to be compared (verl: std > 0 or size 1). The only counting sample of a larger group is not kept, because
/// its advantage is 0.
pub fn keeps_group(group: &RolloutGroup, masked: &[RewardStatus], metric: impl Fn(&Rollout) -> f64) -> bool {
    let values: Vec<f64> = group.counted(masked).map(metric).collect();
    let is_single = group.rollouts.len() == 1 && values.len() == 1;
    is_single || values.windows(2).any(|pair| pair[0] != pair[1])
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::fixtures::{prompt, reward, rollout};

    fn group(rewards: &[(f64, RewardStatus)]) -> RolloutGroup {
        let prompt = prompt(&[1]);
        let sample = |(value, status): &(f64, RewardStatus)| rollout(&prompt, &[2], reward(*value, *status));
        RolloutGroup { rollouts: rewards.iter().map(sample).collect(), prompt: Arc::clone(&prompt) }
    }

    fn is_kept(rewards: &[(f64, RewardStatus)], masked: &[RewardStatus]) -> bool {
        keeps_group(&group(rewards), masked, |rollout| rollout.reward.value)
    }

    #[test]
    fn groups_with_a_signal_are_kept() {
        let ok = |values: &[f64]| values.iter().map(|value| (*value, RewardStatus::Ok)).collect::<Vec<_>>();
        assert!(is_kept(&ok(&[0.0, 0.0, 1.0]), &[]));
        assert!(!is_kept(&ok(&[0.1, 0.1, 0.1]), &[]));
        assert!(is_kept(&ok(&[0.0]), &[]));
        assert!(!is_kept(&[], &[]));
    }

    #[test]
    fn masked_samples_give_a_group_no_signal() {
        use RewardStatus::{Infra, Ok, Timeout, Wrong};
        let masked = [Timeout, Infra];
        assert!(!is_kept(&[(1.0, Ok), (1.0, Ok), (0.0, Timeout)], &masked));
        assert!(!is_kept(&[(1.0, Ok), (0.0, Infra)], &masked), "a lone survivor");
        assert!(!is_kept(&[(0.0, Infra)], &masked));
        assert!(is_kept(&[(1.0, Ok), (0.0, Wrong), (0.0, Timeout)], &masked));
        assert!(is_kept(&[(1.0, Ok), (0.0, Timeout)], &[Infra]), "onTimeout: Zero");
    }
}
