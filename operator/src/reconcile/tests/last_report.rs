//! Proves that a job that completes while no operator runs has the end of its training in its status.

use rlt_api::status::CheckpointStatus;
use rlt_channel::{Checkpoint, Progress as Reported, ReportRequest, Stage, termination};

use super::*;

/// Returns the last report of the first worker, which no operator receives over the channel.
fn last_report() -> ReportRequest {
    let progress = Reported {
        stage: Stage::Training.into(),
        step: 60,
        num_steps: 60,
        reward: Some(0.75),
        ..Reported::default()
    };
    let checkpoint = Checkpoint { step: 60, path: "/runs/step-000060".into(), ..Checkpoint::default() };
    ReportRequest {
        progress: Some(progress),
        checkpoints: vec![checkpoint],
        knows_checkpoints: true,
        ..ReportRequest::default()
    }
}

/// Returns the status of a job whose workers have succeeded, and whose first worker left [`last_report`].
async fn completed(reports: Arc<dyn observe::Reports>) -> RLTrainingJobStatus {
    completed_after(&last_report(), &[], reports).await
}

/// Returns the status after one reconcile of a job whose workers have succeeded. Its first worker left the
/// report `last`, and the status had `checkpoints` before.
async fn completed_after(
    last: &ReportRequest,
    checkpoints: &[CheckpointStatus],
    reports: Arc<dyn observe::Reports>,
) -> RLTrainingJobStatus {
    let server = Server::new(Box::new(|_, _| None));
    let context = Context { reports, ..context(&server) };
    for idx in 0..2 {
        let mut exit = fixtures::exit(0, 1_700_000_000);
        if idx == 0 {
            exit.message = termination::message(last);
        }
        let worker = Worker { phase: WorkerPhase::Succeeded, exit: Some(exit), ..fixtures::worker(idx, 1) };
        context.index.enter(&key(), worker);
    }
    let mut status = begun();
    status["progress"] = json!({"step": 38, "numSteps": 60, "reward": 0.5});
    status["checkpoints"] = json!(checkpoints);
    reconcile(Arc::new(job(&status)), context.into()).await.unwrap();
    server.status().expect("a status is written")
}

#[tokio::test]
async fn a_job_that_completes_while_no_operator_runs_has_its_last_step_reward_and_checkpoint() {
    let status = completed(Arc::new(crate::progress::Reports::new())).await;
    assert!(status.is(ConditionType::Complete));
    let progress = status.progress.unwrap();
    assert_eq!((progress.step, progress.reward), (60, Some(0.75)));
    let steps: Vec<u64> = status.checkpoints.iter().map(|checkpoint| checkpoint.step).collect();
    assert_eq!(steps, [60]);
}

/// Returns a checkpoint that was reported before the last report.
fn saved(step: u64, latest: u64) -> CheckpointStatus {
    CheckpointStatus {
        step,
        path: String::new(),
        digest: String::new(),
        world_size: None,
        latest: step == latest,
        time: "2026-01-01T00:00:00Z".into(),
    }
}

/// Store that has received these checkpoints, but not the report of the last step.
#[derive(Debug)]
struct EarlierReport(Vec<CheckpointStatus>);

impl observe::Reports for EarlierReport {
    fn latest(&self, _: &JobKey) -> Option<Report> {
        let progress = Progress { step: 59, num_steps: 60, ..Progress::default() };
        let checkpoints = Some(self.0.clone());
        Some(Report { attempt: 1, progress: Some(progress), checkpoints, ..Report::default() })
    }

    fn left_by(&self, worker: &Worker) -> Option<Report> {
        observe::Reports::left_by(&crate::progress::Reports::new(), worker)
    }
}

#[tokio::test]
async fn the_last_report_of_a_worker_says_how_a_training_ended_and_drops_no_checkpoint() {
    let status = completed(Arc::new(EarlierReport(vec![saved(40, 60), saved(60, 60)]))).await;
    let steps: Vec<u64> = status.checkpoints.iter().map(|checkpoint| checkpoint.step).collect();
    assert_eq!((status.progress.unwrap().step, steps), (60, vec![40, 60]));
}

/// The checkpoints of steps 21 to 60 exist. Some were reported over the channel, to this operator or to an
/// earlier one, while the checkpoints of steps 11 to 20 still existed.
#[tokio::test]
async fn a_last_report_without_room_for_all_checkpoints_drops_none_that_was_reported() {
    let at =
        |step| Checkpoint { step, path: "p".repeat(200), is_latest: step == 60, ..Checkpoint::default() };
    let last = ReportRequest { checkpoints: (21..=60).map(at).collect(), ..last_report() };
    let earlier: Vec<_> = (11..=59).map(|step| saved(step, 59)).collect();
    let reports: [(&[_], Arc<dyn observe::Reports>); 2] = [
        (&[], Arc::new(EarlierReport(earlier.clone()))),
        (&earlier, Arc::new(crate::progress::Reports::new())),
    ];
    for (in_status, reports) in reports {
        let status = completed_after(&last, in_status, reports).await;
        let steps: Vec<u64> = status.checkpoints.iter().map(|checkpoint| checkpoint.step).collect();
        assert_eq!(steps, (21..=60).collect::<Vec<_>>());
        let latest: Vec<u64> =
            status.checkpoints.iter().filter(|one| one.latest).map(|one| one.step).collect();
        assert_eq!((status.progress.unwrap().step, latest), (60, vec![60]));
    }
}

#[test]
fn a_status_has_at_most_a_hundred_checkpoints_whatever_a_trainer_lists() {
    let listed = |steps: std::ops::RangeInclusive<u64>| steps.map(|step| saved(step, 150)).collect();
    let earlier: Vec<_> = listed(101..=150);
    let report =
        Report { checkpoints: Some(listed(1..=100)), left_out: (101..=200).collect(), ..Report::default() };
    let all = report.checkpoints_with(&earlier).unwrap();
    assert_eq!(all.iter().map(|one| one.step).collect::<Vec<_>>(), (51..=150).collect::<Vec<_>>());
}
