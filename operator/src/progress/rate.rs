//! Rate limits: one token bucket for each client.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Maximum number of reports per second that the ranks of all jobs together are asked to send.
pub(super) const REPORTS_PER_SECOND: usize = 200;
/// Shortest reporting interval of a rank in seconds.
const REPORT_EVERY_SECONDS: usize = 5;

/// Returns the interval at which each of `num_ranks` ranks is asked to report.
pub(super) fn report_every(num_ranks: usize) -> Duration {
    Duration::from_secs(num_ranks.div_ceil(REPORTS_PER_SECOND).max(REPORT_EVERY_SECONDS) as u64)
}

/// Rate limit of one client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowance {
    /// Requests in a burst.
    pub(super) burst: f64,
    /// Sustained requests per second.
    pub(super) per_second: f64,
}

/// Limit for the reports of one rank.
pub(super) const OF_RANK: Allowance = Allowance { burst: 20.0, per_second: 2.0 };
/// Limit for reports from one address: the pods on the host network of one node share it.
pub(super) const OF_ADDRESS: Allowance = Allowance { burst: 1000.0, per_second: 100.0 };
/// Limit for TokenReviews for one address: each costs a call to the API server.
pub(super) const REVIEWS_OF_ADDRESS: Allowance = Allowance { burst: 64.0, per_second: 1.0 };
/// Number of buckets above which full ones are dropped.
const MANY: usize = 4096;

/// Token buckets of all clients.
#[derive(Debug)]
pub(super) struct Rate<K> {
    allowance: Allowance,
    buckets: Mutex<HashMap<K, Bucket>>,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    tokens: f64,
    filled_at: Instant,
}

impl Bucket {
    fn filled(self, allowance: Allowance, now: Instant) -> Self {
        let seconds = now.saturating_duration_since(self.filled_at).as_secs_f64();
        let tokens = (self.tokens + seconds * allowance.per_second).min(allowance.burst);
        Self { tokens, filled_at: now }
    }
}

impl<K: Eq + Hash> Rate<K> {
    /// Returns a rate limit with full buckets.
    pub(super) fn new(allowance: Allowance) -> Self {
        Self { allowance, buckets: Mutex::default() }
    }

    /// Takes a token; returns false if the bucket is empty.
    pub(super) fn allows(&self, client: K, now: Instant) -> bool {
        let allowance = self.allowance;
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() > MANY {
            // A full bucket is equivalent to a missing one.
            buckets.retain(|_, bucket| bucket.filled(allowance, now).tokens < allowance.burst);
        }
        let full = Bucket { tokens: allowance.burst, filled_at: now };
        let bucket = buckets.entry(client).or_insert(full);
        *bucket = bucket.filled(allowance, now);
        let is_allowed = bucket.tokens >= 1.0;
        if is_allowed {
            bucket.tokens -= 1.0;
        }
        is_allowed
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_rank_may_report_in_a_burst_and_then_twice_a_second_whatever_others_do() {
        let (rate, start) = (Rate::new(OF_RANK), Instant::now());
        assert_eq!((0..100).filter(|_| rate.allows("noisy", start)).count(), 20);
        assert!(rate.allows("quiet", start));
        let later = start + Duration::from_secs(3);
        assert_eq!((0..100).filter(|_| rate.allows("noisy", later)).count(), 6);
    }
}
