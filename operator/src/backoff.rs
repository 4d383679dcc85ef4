//! Exponential back-off.

use std::time::Duration;

/// `first`, doubled for each of `num_doublings`, and at most `longest`.
pub(crate) fn doubled(first: Duration, num_doublings: u32, longest: Duration) -> Duration {
    first.saturating_mul(2u32.saturating_pow(num_doublings)).min(longest)
}
