//! Restarts in place: a pod that runs all ranks of its job restarts their processes itself, without a new
//! pod. This module decides for which causes, counts the retries that are left, and formats the report.

use std::collections::BTreeMap;

use super::cause::{Budget, FailureCause};
use crate::spec::RetriesSpec;

/// Prefix of the line in a termination message that counts restarts in place.
const LINE: &str = "restarts in place: ";

impl FailureCause {
    /// Whether processes that ended for this cause may restart in their pod. After a device failure the pod
    /// ends instead, so that the next one can run on another node.
    pub fn restarts_in_place(self) -> bool {
        matches!(
            self,
            Self::Signalled
                | Self::PeerLost
                | Self::RetryableIo
                | Self::CorruptCheckpoint
                | Self::TrainerFailed
        )
    }

    /// Parses the name of a cause as it is written in a status.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|cause| format!("{cause:?}") == name)
    }
}

/// Returns the remaining budget of each cause after the `used` retries.
pub fn retries_left(retries: &RetriesSpec, used: &BTreeMap<FailureCause, u32>) -> RetriesSpec {
    let mut left = retries.clone();
    for (cause, count) in used {
        let Budget::Limited { field, .. } = cause.budget(retries) else { continue };
        let budget = match field {
            "outOfMemory" => &mut left.out_of_memory,
            "crash" => &mut left.crash,
            "io" => &mut left.io,
            "checkpoint" => &mut left.checkpoint,
            "failure" => &mut left.failure,
            _ => &mut left.stall,
        };
        *budget = budget.saturating_sub(*count);
    }
    left
}

/// Formats the line of a termination message that counts restarts in place by cause; empty where there were
/// none.
pub fn restarts_line(restarts: &BTreeMap<FailureCause, u32>) -> String {
    let counts: Vec<_> = restarts.iter().map(|(cause, count)| format!("{cause:?}={count}")).collect();
    if counts.is_empty() { String::new() } else { format!("\n{LINE}{}", counts.join(" ")) }
}

/// Parses the restarts in place, by cause, from a termination message.
pub fn restarts_in(message: &str) -> BTreeMap<FailureCause, u32> {
    let line = message.lines().find_map(|line| line.strip_prefix(LINE)).unwrap_or_default();
    let counts = line.split(' ').filter_map(|count| count.split_once('='));
    counts.filter_map(|(name, count)| Some((FailureCause::from_name(name)?, count.parse().ok()?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_in_a_termination_message_are_read_back() {
        let restarts = BTreeMap::from([(FailureCause::Signalled, 2), (FailureCause::RetryableIo, 1)]);
        let message = format!("rank 3 was killed by signal 9{}", restarts_line(&restarts));
        assert_eq!(restarts_in(&message), restarts);
        assert_eq!(restarts_line(&BTreeMap::new()), "");
        assert!(restarts_in("restarts in place: Nonsense=1 Signalled=x").is_empty());
    }

    #[test]
    fn causes_of_one_budget_use_it_up_together_and_no_budget_falls_below_zero() {
        let retries = RetriesSpec { crash: 3, io: 1, ..RetriesSpec::default() };
        let used =
            [(FailureCause::Signalled, 1), (FailureCause::PeerLost, 1), (FailureCause::RetryableIo, 5)];
        let left = retries_left(&retries, &used.into());
        assert_eq!(left, RetriesSpec { crash: 1, io: 0, ..retries });
    }

    #[test]
    fn every_cause_has_a_name_and_one_that_another_node_may_mend_ends_the_pod() {
        for cause in FailureCause::ALL {
            assert_eq!(FailureCause::from_name(&format!("{cause:?}")), Some(cause));
        }
        assert!(!FailureCause::DeviceFailed.restarts_in_place());
        assert!(!FailureCause::BadConfig.restarts_in_place(), "it would end in the same way");
    }
}
