//! Stop signals, and the grace period that they leave to ranks.

use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::LaunchError;

/// Interval of polls for a signal.
const POLL: Duration = Duration::from_millis(20);

/// Receiver of stop signals, with the time of the first one.
pub(super) struct StopSignal {
    signals: Signals,
    grace: Duration,
    since: Option<Instant>,
}

impl StopSignal {
    /// Catches SIGTERM and SIGINT from now on. From the first of them, ranks have `grace` to end.
    pub(super) fn listen(grace: Duration) -> Result<Self, LaunchError> {
        let signals = Signals::new([SIGTERM, SIGINT])
            .map_err(|source| LaunchError::Process { act: "listen for signals", source })?;
        Ok(Self { signals, grace, since: None })
    }

    /// Whether a signal was received since the last call.
    pub(super) fn has_come(&mut self) -> bool {
        let has_come = self.signals.pending().next().is_some();
        if has_come {
            self.since.get_or_insert_with(Instant::now);
        }
        has_come
    }

    /// Whether a signal was received at any time.
    pub(super) fn is_asked_for(&self) -> bool {
        self.since.is_some()
    }

    /// Returns the grace period, if it has passed.
    pub(super) fn expired_grace(&self) -> Option<Duration> {
        self.since.filter(|since| since.elapsed() >= self.grace).map(|_| self.grace)
    }

    /// Sleeps until a signal is received or `duration` has passed; returns whether a signal was received at
    /// any time.
    pub(super) fn sleep(&mut self, duration: Duration) -> bool {
        let until = Instant::now() + duration;
        while !self.has_come() && Instant::now() < until {
            std::thread::sleep(POLL.min(until.saturating_duration_since(Instant::now())));
        }
        self.is_asked_for()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_ends_with_a_signal_and_the_grace_begins_with_the_first() {
        let mut stop = StopSignal::listen(Duration::ZERO).unwrap();
        assert!(!stop.sleep(Duration::from_millis(1)));
        assert_eq!(stop.expired_grace(), None);
        signal_hook::low_level::raise(SIGTERM).unwrap();
        let started = Instant::now();
        assert!(stop.sleep(Duration::from_secs(600)));
        assert!(started.elapsed() < Duration::from_secs(300));
        assert_eq!(stop.expired_grace(), Some(Duration::ZERO));
    }
}
