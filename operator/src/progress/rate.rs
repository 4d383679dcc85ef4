//! How often a pod may report: a bucket of tokens each.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Reports that a pod may send in a row.
const BURST: f64 = 20.0;
/// Reports a second that a pod may send all the time.
const PER_SECOND: f64 = 2.0;
/// Buckets above which full ones are dropped.
const MANY: usize = 4096;

/// The buckets of all pods.
#[derive(Debug, Default)]
pub(super) struct ReportRate {
    buckets: Mutex<HashMap<String, Bucket>>,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    tokens: f64,
    filled_at: Instant,
}

impl Bucket {
    fn filled(self, now: Instant) -> Self {
        let seconds = now.saturating_duration_since(self.filled_at).as_secs_f64();
        Self { tokens: (self.tokens + seconds * PER_SECOND).min(BURST), filled_at: now }
    }
}

impl ReportRate {
    /// Whether a pod may report now; takes a token if so.
    pub(super) fn allows(&self, pod_uid: &str, now: Instant) -> bool {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() > MANY {
            // A full bucket is no different from one that does not exist.
            buckets.retain(|_, bucket| bucket.filled(now).tokens < BURST);
        }
        let full = Bucket { tokens: BURST, filled_at: now };
        let bucket = buckets.entry(pod_uid.to_owned()).or_insert(full);
        *bucket = bucket.filled(now);
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
    fn a_pod_may_report_in_a_burst_and_then_twice_a_second_whatever_others_do() {
        let (rate, start) = (ReportRate::default(), Instant::now());
        assert_eq!((0..100).filter(|_| rate.allows("noisy", start)).count(), 20);
        assert!(rate.allows("quiet", start));
        let later = start + Duration::from_secs(3);
        assert_eq!((0..100).filter(|_| rate.allows("noisy", later)).count(), 6);
    }
}
