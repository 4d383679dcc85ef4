//! Exponential backoff, as a pure function.

use std::time::Duration;

/// Returns `first` doubled `num_doublings` times, but at most `longest`.
pub(crate) fn doubled(first: Duration, num_doublings: u32, longest: Duration) -> Duration {
    first.saturating_mul(2u32.saturating_pow(num_doublings)).min(longest)
}
