//! Delays after short attempts, for every component that starts attempts: the operator, the launcher of a
//! local run, and the launcher of a pod that restarts its ranks in place.

use std::time::Duration;

/// Longest attempt that counts as short, and so delays the next one.
pub const SHORT_ATTEMPT: Duration = Duration::from_secs(60);
/// Delay of the next attempt after the second short one in a row; doubled after each further one.
const FIRST_DELAY: Duration = Duration::from_secs(5);
/// Longest delay of an attempt after short ones.
const MAX_DELAY: Duration = Duration::from_secs(300);

/// Progress of an attempt before it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptProgress {
    /// The attempt saved a new checkpoint.
    Saved,
    /// The attempt saved no checkpoint, but was not short.
    Lived,
    /// The attempt failed soon after its start.
    None,
}

impl AttemptProgress {
    /// Returns the progress of an attempt that failed after `lived`; `has_saved` says whether it saved a new
    /// checkpoint.
    pub fn of(has_saved: bool, lived: Duration) -> Self {
        match has_saved {
            true => Self::Saved,
            false if lived < SHORT_ATTEMPT => Self::None,
            false => Self::Lived,
        }
    }

    /// Returns the number of consecutive attempts without progress, this one included, if there were
    /// `before` of them.
    pub fn num_short(self, before: u32) -> u32 {
        match self {
            Self::Saved | Self::Lived => 0,
            Self::None => before.saturating_add(1),
        }
    }
}

/// Returns the delay of the next attempt after `num_short` short attempts in a row.
pub fn restart_delay(num_short: u32) -> Duration {
    match num_short {
        0 | 1 => Duration::ZERO,
        many => (FIRST_DELAY * (1 << (many - 2).min(16))).min(MAX_DELAY),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_doubles_up_to_a_limit() {
        let seconds = |num_short| restart_delay(num_short).as_secs();
        assert_eq!([0, 1, 2, 3, 5, 7, 8, 40, u32::MAX].map(seconds), [0, 0, 5, 10, 40, 160, 300, 300, 300]);
    }

    #[test]
    fn a_new_checkpoint_and_a_long_attempt_end_a_series_of_short_ones() {
        // Columns: whether the attempt saved a checkpoint, its duration in seconds, the expected number of
        // short attempts in a row, and the expected delay in seconds.
        let attempts = [
            (false, 5, 1, 0),
            (false, 59, 2, 5),
            (false, 5, 3, 10),
            (true, 5, 0, 0),
            (false, 5, 1, 0),
            (false, 5, 2, 5),
            (false, 60, 0, 0),
            (false, 5, 1, 0),
            (true, 90, 0, 0),
        ];
        let mut num_short = 0;
        for (idx, (has_saved, seconds, expected, delay)) in attempts.into_iter().enumerate() {
            num_short = AttemptProgress::of(has_saved, Duration::from_secs(seconds)).num_short(num_short);
            assert_eq!((num_short, restart_delay(num_short).as_secs()), (expected, delay), "attempt {idx}");
        }
        assert_eq!(AttemptProgress::None.num_short(u32::MAX), u32::MAX);
    }
}
