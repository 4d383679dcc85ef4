//! Times in a status: RFC 3339 in whole seconds, as in Kubernetes' own objects.

use std::time::Duration;

use k8s_openapi::jiff::{RoundMode, Timestamp, TimestampRound, Unit};

/// Formats a time for a status, rounded down.
pub(super) fn rfc3339(time: Timestamp) -> String {
    let whole = TimestampRound::new().smallest(Unit::Second).mode(RoundMode::Trunc);
    time.round(whole).unwrap_or(time).to_string()
}

/// Returns the whole seconds between two times; 0 if `later` is the earlier one.
pub(super) fn seconds_between(earlier: Timestamp, later: Timestamp) -> u64 {
    u64::try_from(later.duration_since(earlier).as_secs()).unwrap_or(0)
}

/// Returns the duration until a time; `None` once it has passed.
pub(super) fn until(time: Option<Timestamp>, now: Timestamp) -> Option<Duration> {
    let wait = time?.duration_since(now);
    Duration::try_from(wait).ok().filter(|wait| !wait.is_zero())
}
