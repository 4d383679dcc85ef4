//! Decides when a report causes a status write: at once, within ten seconds, or never. Pure.

use std::time::{Duration, Instant};

use rlt_channel::Progress;

use super::reports::JobReport;

/// Interval between status writes that only progress causes.
pub(super) const PROGRESS_EVERY: Duration = Duration::from_secs(10);

/// Time at which a report is released for a status write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Release {
    /// Nothing in the report would change a status.
    Never,
    /// Released at once.
    Now,
    /// Released at a later time, together with later reports.
    At(Instant),
}

/// Decides when to release `newest`, given the report that was `released` last.
pub(super) fn release(released: Option<(&JobReport, Instant)>, newest: &JobReport, now: Instant) -> Release {
    let Some((released, released_at)) = released else { return Release::Now };
    if is_urgent(released, newest) {
        return Release::Now;
    }
    if same_progress(released.progress.as_ref(), newest.progress.as_ref()) {
        return Release::Never;
    }
    let due = released_at + PROGRESS_EVERY;
    if due <= now { Release::Now } else { Release::At(due) }
}

/// Whether the report is released at once: for a new attempt, a checkpoint, an exit, a restart or the first
/// step.
fn is_urgent(released: &JobReport, newest: &JobReport) -> bool {
    let step = |report: &JobReport| report.progress.as_ref().map_or(0, |progress| progress.step);
    released.attempt != newest.attempt
        || released.checkpoints != newest.checkpoints
        || released.commits != newest.commits
        || released.endings != newest.endings
        || released.restarts != newest.restarts
        || (step(released) == 0 && step(newest) > 0)
}

/// Whether two progresses give the same status; durations that always increase do not count.
fn same_progress(one: Option<&Progress>, other: Option<&Progress>) -> bool {
    let without_clocks = |progress: &Progress| Progress { time_spent: None, ..progress.clone() };
    one.map(without_clocks) == other.map(without_clocks)
}

#[cfg(test)]
mod tests {
    use rlt_channel::{Checkpoint, Ending};

    use super::*;

    fn report(step: u64) -> JobReport {
        let progress = Progress { step, num_steps: 100, ..Progress::default() };
        JobReport { attempt: 1, progress: Some(progress), ..JobReport::default() }
    }

    fn judge(released: &JobReport, newest: &JobReport, seconds_later: u64) -> Release {
        let then = Instant::now();
        let ended = release(Some((released, then)), newest, then + Duration::from_secs(seconds_later));
        if let Release::At(due) = ended {
            assert_eq!(due, then + PROGRESS_EVERY);
        }
        ended
    }

    #[test]
    fn the_first_report_of_a_job_is_released_at_once() {
        assert_eq!(release(None, &report(0), Instant::now()), Release::Now);
    }

    #[test]
    fn progress_is_released_once_in_ten_seconds() {
        assert!(matches!(judge(&report(1), &report(2), 9), Release::At(_)));
        assert_eq!(judge(&report(1), &report(2), 10), Release::Now);
    }

    #[test]
    fn a_report_without_a_visible_change_is_never_released() {
        let mut later = report(3);
        later.progress.as_mut().unwrap().time_spent = Some(rlt_channel::TimeSpent::default());
        later.metrics.insert("actor/lr".into(), 1e-5);
        assert_eq!(judge(&report(3), &later, 1000), Release::Never);
    }

    #[test]
    fn checkpoints_ends_attempts_and_the_first_step_do_not_wait() {
        let checkpoint = JobReport { checkpoints: Some(vec![Checkpoint::default()]), ..report(5) };
        let ending = JobReport { endings: [(3, Ending::default())].into(), ..report(5) };
        let attempt = JobReport { attempt: 2, ..report(5) };
        let restart = JobReport { restarts: [("PeerLost".to_owned(), 1)].into(), ..report(5) };
        for newest in [checkpoint, ending, attempt, restart] {
            assert_eq!(judge(&report(5), &newest, 0), Release::Now, "{newest:?}");
        }
        assert_eq!(judge(&report(0), &report(1), 0), Release::Now);
    }
}
