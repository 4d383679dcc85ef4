//! Proves what readers see of reports that are late, duplicated, out of order or too frequent.

use futures::{FutureExt as _, StreamExt as _};

use super::*;

fn source(attempt: u32, rank: u32) -> Source {
    Source { job_uid: "uid".into(), namespace: "team".into(), name: "adding".into(), attempt, rank }
}

fn step(sequence: u64, step: u64) -> ReportRequest {
    let progress = Progress { step, num_steps: 100, ..Progress::default() };
    ReportRequest { sequence, progress: Some(progress), ..ReportRequest::default() }
}

fn checkpoints(sequence: u64, steps: &[u64]) -> ReportRequest {
    let checkpoints = steps.iter().map(|&step| Checkpoint { step, ..Checkpoint::default() }).collect();
    ReportRequest {
        knows_checkpoints: true,
        checkpoints,
        ..step(sequence, steps.last().copied().unwrap_or(0))
    }
}

fn step_of(reports: &Reports) -> u64 {
    reports.of(&job(&source(1, 0))).unwrap().progress.as_ref().unwrap().step
}

#[tokio::test(start_paused = true)]
async fn a_job_that_steps_ten_times_a_second_is_reconciled_once_in_ten_seconds() {
    let reports = Reports::new();
    let mut changes = reports.take_changes().unwrap();
    let mut num_news = 0;
    // The store reads the clock of the machine. Its timers use the clock of tokio, which is paused and moved
    // by `advance`.
    for sequence in 1..=300 {
        reports.take(&source(1, 0), step(sequence, sequence));
        while changes.next().now_or_never().is_some() {
            num_news += 1;
        }
    }
    assert_eq!(num_news, 1, "the first step only");
    assert_eq!(step_of(&reports), 1, "what is not released is not seen");
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert_eq!(changes.next().now_or_never().flatten().unwrap().name, "adding");
    assert_eq!(step_of(&reports), 300, "and then the newest is");
    assert!(changes.next().now_or_never().is_none());
}

#[tokio::test]
async fn a_report_that_comes_twice_or_late_changes_nothing() {
    let reports = Reports::new();
    reports.take(&source(1, 0), checkpoints(5, &[10, 20]));
    reports.take(&source(1, 0), checkpoints(5, &[]));
    reports.take(&source(1, 0), checkpoints(4, &[10]));
    assert_eq!(reports.of(&job(&source(1, 0))).unwrap().checkpoints.as_ref().unwrap().len(), 2);
}

#[tokio::test]
async fn reports_of_an_ended_attempt_are_refused() {
    let reports = Reports::new();
    reports.take(&source(2, 0), step(1, 7));
    reports.take(&source(1, 0), checkpoints(900, &[99]));
    let report = reports.of(&job(&source(1, 0))).unwrap();
    assert_eq!((report.attempt, report.progress.as_ref().unwrap().step), (2, 7));
}

#[tokio::test]
async fn checkpoints_outlive_the_attempt_that_saved_them_until_the_next_one_lists_them() {
    let reports = Reports::new();
    reports.take(&source(1, 0), checkpoints(50, &[10, 20]));
    reports.take(&source(2, 0), step(1, 0));
    assert_eq!(reports.of(&job(&source(1, 0))).unwrap().checkpoints.as_ref().unwrap().len(), 2);
    reports.take(&source(2, 0), checkpoints(2, &[20]));
    assert_eq!(reports.of(&job(&source(1, 0))).unwrap().checkpoints.as_ref().unwrap().len(), 1);
}

#[tokio::test]
async fn progress_is_read_from_rank_0_and_the_end_from_every_rank() {
    let reports = Reports::new();
    reports.take(&source(1, 0), step(1, 3));
    let ending = Ending { exit_code: 76, message: "rank 0 is gone".into(), ..Ending::default() };
    reports.take(&source(1, 5), ReportRequest { ending: Some(ending), ..step(1, 1000) });
    let report = reports.of(&job(&source(1, 0))).unwrap();
    assert_eq!(report.progress.as_ref().unwrap().step, 3);
    assert_eq!(report.endings[&5].exit_code, 76);
}

#[tokio::test]
async fn the_steps_of_rank_0_in_the_newest_attempt_are_watched() {
    let reports = Reports::new();
    let key = job(&source(1, 0));
    assert_eq!(reports.without_step(&key), None, "nothing was heard");
    reports.take(&source(1, 1), step(1, 3));
    reports.take(&source(1, 0), ReportRequest { progress: None, ..step(1, 0) });
    assert_eq!(reports.without_step(&key), None, "its progress is not known");
    reports.take(&source(1, 0), step(2, 3));
    assert!(reports.without_step(&key).is_some());
    reports.take(&source(2, 1), step(1, 3));
    assert_eq!(reports.without_step(&key), None, "rank 0 of the next attempt was not heard");
}

#[tokio::test]
async fn a_job_that_is_gone_is_forgotten() {
    let reports = Reports::new();
    reports.take(&source(1, 0), step(1, 3));
    reports.forget(&job(&source(1, 0)));
    assert!(reports.of(&job(&source(1, 0))).is_none() && reports.is_empty());
}

#[tokio::test]
async fn ranks_are_counted_until_they_end_and_only_those_of_the_newest_attempt() {
    let reports = Reports::new();
    let other = |rank| Source { job_uid: "other".into(), name: "other".into(), ..source(1, rank) };
    for rank in 0..64 {
        assert_eq!(reports.take(&source(1, rank), step(1, 1)), rank as usize + 1);
    }
    assert_eq!(reports.take(&source(1, 7), step(2, 2)), 64, "each once");
    assert_eq!(reports.take(&other(0), step(1, 1)), 65);
    let ended = ReportRequest { ending: Some(Ending::default()), ..step(2, 2) };
    assert_eq!(reports.take(&source(1, 9), ended), 64, "a rank that has ended reports nothing more");
    assert_eq!(reports.take(&source(2, 0), step(1, 1)), 2, "one of either job");
}

#[tokio::test]
async fn a_report_about_a_uid_in_another_namespace_is_no_report_about_the_job() {
    let reports = Reports::new();
    reports.take(&source(1, 0), step(1, 3));
    let foreign = Source { namespace: "other".into(), ..source(2, 0) };
    reports.take(&foreign, step(9, 99));
    assert_eq!(step_of(&reports), 3);
}
