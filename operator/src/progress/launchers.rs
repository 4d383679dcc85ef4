//! Newest report of each launcher whose pod may be assigned to another attempt, by job and pod.
//!
//! A launcher without a recent report counts as unknown, and its pod is not used. A process that begins to
//! lead has no reports; launchers have `KNOWN_FOR` to report to it.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rlt_objects::worker::{JobKey, Launcher};

/// Time for which a launcher's report is valid. Launchers poll more often, unless they or the network are
/// broken.
const KNOWN_FOR: Duration = Duration::from_secs(30);

/// Newest reports of all launchers.
#[derive(Debug, Default)]
pub(super) struct Launchers {
    jobs: Mutex<HashMap<JobKey, OfJob>>,
    /// Whether launchers can report to this process when it leads.
    are_expected: AtomicBool,
    /// Time at which this process began to lead.
    led_since: OnceLock<Instant>,
}

#[derive(Debug, Default)]
struct OfJob {
    by_pod: BTreeMap<Arc<str>, (Launcher, Instant)>,
    is_over: bool,
}

/// Result of storing a launcher's report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    /// Whether the report differs from the previous one.
    pub(super) is_news: bool,
    /// Whether the job has ended.
    pub(super) is_over: bool,
    /// Number of launchers of all jobs.
    pub(super) num_launchers: usize,
}

impl Launchers {
    /// Stores the report of the launcher of an authenticated pod.
    pub(super) fn take(&self, job: &JobKey, pod_uid: &str, launcher: Launcher, now: Instant) -> Taken {
        let mut jobs = self.lock();
        jobs.retain(|_, of_job| {
            of_job.by_pod.retain(|_, (_, heard_at)| is_known(*heard_at, now));
            !of_job.by_pod.is_empty()
        });
        let of_job = jobs.entry(job.clone()).or_default();
        let before = of_job.by_pod.insert(pod_uid.into(), (launcher.clone(), now));
        let (is_news, is_over) = (before.is_none_or(|(before, _)| before != launcher), of_job.is_over);
        Taken { is_news, is_over, num_launchers: jobs.values().map(|of_job| of_job.by_pod.len()).sum() }
    }

    /// Returns the last reports of a job's launchers, by the UID of their pods.
    pub(super) fn of(&self, job: &JobKey, now: Instant) -> BTreeMap<Arc<str>, Launcher> {
        let jobs = self.lock();
        let known = jobs.get(job).into_iter().flat_map(|of_job| &of_job.by_pod);
        let known = known.filter(|(_, (_, heard_at))| is_known(*heard_at, now));
        known.map(|(uid, (launcher, _))| (Arc::clone(uid), launcher.clone())).collect()
    }

    /// Marks a job as ended, which its launchers learn from the answer to their next report.
    pub(super) fn end(&self, job: &JobKey) {
        if let Some(of_job) = self.lock().get_mut(job) {
            of_job.is_over = true;
        }
    }

    /// Records that launchers can report to this process when it leads.
    pub(super) fn expect_reports(&self) {
        self.are_expected.store(true, Ordering::Relaxed);
    }

    /// Records that this process leads; later calls change nothing.
    pub(super) fn lead(&self, now: Instant) {
        let _ = self.led_since.set(now);
    }

    /// Returns the time that launchers have left to report to this process after it begins to lead; `None`
    /// once it is over, or if no launcher can report.
    pub(super) fn due(&self, now: Instant) -> Option<Duration> {
        if !self.are_expected.load(Ordering::Relaxed) {
            return None;
        }
        let led_for = self.led_since.get().map(|since| now.saturating_duration_since(*since));
        let left = KNOWN_FOR.saturating_sub(led_for.unwrap_or_default());
        (!left.is_zero()).then_some(left)
    }

    pub(super) fn forget(&self, job: &JobKey) {
        self.lock().remove(job);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<JobKey, OfJob>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_known(heard_at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(heard_at) < KNOWN_FOR
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> JobKey {
        JobKey { uid: "u".into(), namespace: "team".into(), name: "job".into() }
    }

    #[test]
    fn a_word_counts_until_the_next_one_or_until_the_launcher_is_silent() {
        let (launchers, start) = (Launchers::default(), Instant::now());
        let of = |attempt| Launcher { attempt, ..Launcher::default() };
        assert!(launchers.take(&key(), "a", of(1), start).is_news);
        assert!(!launchers.take(&key(), "a", of(1), start).is_news);
        let taken = launchers.take(&key(), "b", of(2), start + KNOWN_FOR / 2);
        assert_eq!(taken, Taken { is_news: true, is_over: false, num_launchers: 2 });
        let known = |at| launchers.of(&key(), at).into_keys().collect::<Vec<_>>();
        assert_eq!(known(start), ["a".into(), "b".into()]);
        assert_eq!(known(start + KNOWN_FOR), ["b".into()]);
        assert_eq!(known(start + 2 * KNOWN_FOR), [] as [Arc<str>; 0]);
    }

    #[test]
    fn launchers_have_time_to_report_to_a_process_that_begins_to_lead() {
        let (launchers, start) = (Launchers::default(), Instant::now());
        assert_eq!(launchers.due(start), None, "without a channel none reports");
        launchers.expect_reports();
        assert_eq!(launchers.due(start), Some(KNOWN_FOR), "it does not lead yet");
        launchers.lead(start);
        launchers.lead(start + KNOWN_FOR);
        assert_eq!(launchers.due(start + KNOWN_FOR / 2), Some(KNOWN_FOR / 2));
        assert_eq!(launchers.due(start + KNOWN_FOR), None);
    }

    #[test]
    fn launchers_of_a_job_that_has_ended_learn_it_with_their_next_question() {
        let (launchers, now) = (Launchers::default(), Instant::now());
        launchers.end(&key());
        assert!(!launchers.take(&key(), "a", Launcher::default(), now).is_over, "it was not asked to end");
        launchers.end(&key());
        assert!(launchers.take(&key(), "a", Launcher::default(), now).is_over);
    }
}
