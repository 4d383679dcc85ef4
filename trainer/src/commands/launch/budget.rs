//! Decides whether and when a failed attempt is retried. This module uses neither processes nor a clock.

use std::collections::BTreeMap;
use std::time::Duration;

use rlt_api::failure::{AttemptProgress, restart_delay};
use rlt_api::spec::RetriesSpec;
use rlt_api::{Budget, FailureCause};

/// Budget of `runPolicy.retries`, and how much of it was used.
#[derive(Debug)]
pub(super) struct Restarts {
    retries: RetriesSpec,
    used: BTreeMap<&'static str, u32>,
    num_short: u32,
}

/// Decision after a failed attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The job is restarted.
    Restart {
        /// Delay before the restart.
        after: Duration,
        /// Description of the budget that is used.
        budget: String,
    },
    /// The job ends.
    End {
        /// Reason, for messages; empty if a retry was never possible.
        why: String,
    },
}

impl Restarts {
    pub(super) fn new(retries: &RetriesSpec) -> Self {
        Self { retries: retries.clone(), used: BTreeMap::new(), num_short: 0 }
    }

    /// Decides after an attempt that ended for `cause`. A new checkpoint resets all budgets. The delay grows
    /// with the number of consecutive attempts without progress.
    pub(super) fn after(&mut self, cause: FailureCause, progress: AttemptProgress) -> Next {
        if progress == AttemptProgress::Saved {
            self.used.clear();
        }
        let Budget::Limited { field, limit } = cause.budget(&self.retries) else {
            return Next::End { why: String::new() };
        };
        let used = self.used.entry(field).or_default();
        if *used >= limit {
            return Next::End { why: format!("\n  not started again: retries.{field} of {limit} used up") };
        }
        *used += 1;
        let budget = format!("{used} of retries.{field} {limit}");
        self.num_short = progress.num_short(self.num_short);
        Next::Restart { after: restart_delay(self.num_short), budget }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(next: Next) -> u64 {
        match next {
            Next::Restart { after, .. } => after.as_secs(),
            Next::End { why } => unreachable!("ended: {why}"),
        }
    }

    #[test]
    fn each_cause_has_its_own_budget_and_permanent_failures_have_none() {
        let mut restarts = Restarts::new(&RetriesSpec { crash: 2, io: 1, ..RetriesSpec::default() });
        for cause in [FailureCause::Signalled, FailureCause::PeerLost, FailureCause::RetryableIo] {
            seconds(restarts.after(cause, AttemptProgress::Lived));
        }
        let over = |why: &str| Next::End { why: format!("\n  not started again: {why} used up") };
        let mut end = |cause| restarts.after(cause, AttemptProgress::Lived);
        assert_eq!(end(FailureCause::Signalled), over("retries.crash of 2"));
        assert_eq!(end(FailureCause::RetryableIo), over("retries.io of 1"));
        assert_eq!(end(FailureCause::TrainerFailed), over("retries.failure of 0"));
        for cause in [FailureCause::BadConfig, FailureCause::Diverged] {
            assert_eq!(end(cause), Next::End { why: String::new() });
        }
    }

    #[test]
    fn a_new_checkpoint_resets_the_budgets_of_retries() {
        let mut restarts = Restarts::new(&RetriesSpec { crash: 1, ..RetriesSpec::default() });
        for progress in [AttemptProgress::None, AttemptProgress::Saved, AttemptProgress::Saved] {
            seconds(restarts.after(FailureCause::Signalled, progress));
        }
        assert!(matches!(restarts.after(FailureCause::Signalled, AttemptProgress::Lived), Next::End { .. }));
    }

    #[test]
    fn attempts_without_progress_are_retried_with_growing_delays() {
        use AttemptProgress::{None, Saved};
        let mut restarts = Restarts::new(&RetriesSpec { crash: 100, ..RetriesSpec::default() });
        let mut after = |progress| seconds(restarts.after(FailureCause::Signalled, progress));
        assert_eq!([None, None, None, Saved, None, None].map(&mut after), [0, 5, 10, 0, 0, 5]);
    }
}
