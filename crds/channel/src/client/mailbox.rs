//! The newest state of a process, between the threads that change it and the thread that sends it.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::sync::Notify;

use super::Urgency;
use super::bounded::bound;
use crate::{ReportRequest, Source};

/// Holds one report, never more.
#[derive(Debug)]
pub(super) struct Mailbox {
    state: Mutex<State>,
    changed: Notify,
    acknowledged: Condvar,
}

#[derive(Debug)]
struct State {
    report: ReportRequest,
    /// Number of the latest change, from 1.
    version: u64,
    /// The newest version that is urgent.
    urgent_version: u64,
    /// The newest version that the operator has acknowledged.
    acknowledged_version: u64,
    life: Life,
}

/// State of the mailbox: whether more reports will follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// The process continues.
    Open,
    /// The last state waits for its acknowledgement.
    Closing,
    /// No report will be sent any more.
    Closed,
}

/// Snapshot of the mailbox that the sender reads to decide whether it waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    pub(super) has_urgent: bool,
    pub(super) life: Life,
}

impl Mailbox {
    pub(super) fn new(source: Source) -> Self {
        let report =
            ReportRequest { source: Some(source), sequence: boot_micros(), ..ReportRequest::default() };
        let state =
            State { report, version: 1, urgent_version: 1, acknowledged_version: 0, life: Life::Open };
        Self { state: Mutex::new(state), changed: Notify::new(), acknowledged: Condvar::new() }
    }

    pub(super) fn update(&self, urgency: Urgency, change: impl FnOnce(&mut ReportRequest)) {
        let mut state = self.lock();
        change(&mut state.report);
        bound(&mut state.report);
        state.version += 1;
        if urgency == Urgency::AtOnce {
            state.urgent_version = state.version;
            drop(state);
            self.changed.notify_one();
        }
    }

    /// Waits until the operator has acknowledged the newest urgent state, at most `timeout`, then closes the
    /// mailbox. Returns whether the operator has acknowledged it.
    pub(super) fn close(&self, timeout: Duration) -> bool {
        let mut state = self.lock();
        state.life = Life::Closing;
        self.changed.notify_one();
        let is_missing = |state: &mut State| state.acknowledged_version < state.urgent_version;
        let waited = self.acknowledged.wait_timeout_while(state, timeout, is_missing);
        let (mut state, result) = waited.unwrap_or_else(PoisonError::into_inner);
        state.life = Life::Closed;
        self.changed.notify_one();
        !result.timed_out()
    }

    pub(super) fn standing(&self) -> Standing {
        let state = self.lock();
        Standing { has_urgent: state.urgent_version > state.acknowledged_version, life: state.life }
    }

    /// Returns a copy of the newest state, with the sequence number of the last report.
    pub(super) fn newest(&self) -> ReportRequest {
        self.lock().report.clone()
    }

    /// Returns the state to send, with a new sequence number, and its version.
    pub(super) fn take(&self) -> (ReportRequest, u64) {
        let mut state = self.lock();
        state.report.sequence += 1;
        (state.report.clone(), state.version)
    }

    pub(super) fn acknowledge(&self, version: u64) {
        self.lock().acknowledged_version = version;
        self.acknowledged.notify_all();
    }

    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the microseconds since the machine started, as the first sequence number. All processes of a rank
/// in one attempt run on one machine. Its wall clock may be set back between two processes, this clock
/// cannot.
fn boot_micros() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let micros = now.tv_sec.saturating_mul(1_000_000).saturating_add(now.tv_nsec / 1000);
    u64::try_from(micros).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The wall clock is far above, and may be set back.
    #[test]
    fn a_process_numbers_its_reports_above_those_of_its_predecessor_by_the_age_of_the_machine() {
        let before = boot_micros();
        let first = Mailbox::new(Source::default());
        let [_, last_of_first] = [first.take(), first.take()].map(|(report, _)| report.sequence);
        // Far shorter than the start of a process.
        std::thread::sleep(Duration::from_millis(1));
        let second = Mailbox::new(Source::default()).take().0.sequence;
        assert!(before < last_of_first && last_of_first < second, "{before} {last_of_first} {second}");
        assert!(second <= boot_micros() + 1, "{second}");
    }
}
