//! Backoff while the operator does not answer.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Exponential backoff with jitter, so that ranks do not retry at the same time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Backoff {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Backoff {
    pub(super) fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, next: first }
    }

    pub(super) fn reset(&mut self) {
        self.next = self.first;
    }

    /// Returns the wait after one more failure: between half of the current backoff and all of it.
    pub(super) fn after_failure(&mut self) -> Duration {
        let whole = self.next;
        self.next = (whole * 2).min(self.longest);
        whole.mul_f64(0.5 + 0.5 * chance())
    }
}

/// Returns a number in [0, 1) that differs between processes that fail at the same moment.
fn chance() -> f64 {
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.subsec_nanos());
    let mixed =
        (u64::from(nanos) ^ (u64::from(std::process::id()) << 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_doubles_up_to_its_limit_and_begins_anew_after_a_success() {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(4));
        for whole in [1, 2, 4, 4] {
            let waited = backoff.after_failure();
            assert!(
                waited >= Duration::from_secs(whole) / 2 && waited <= Duration::from_secs(whole),
                "{waited:?}"
            );
        }
        backoff.reset();
        assert!(backoff.after_failure() <= Duration::from_secs(1));
    }
}
