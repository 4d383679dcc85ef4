//! Proves that a job that completes while no operator runs has the end of its training in its status.

use rlt_api::status::CheckpointStatus;
use rlt_channel::{Checkpoint, Progress as Reported, ReportRequest, Stage, termination};

use super::*;

/// Last report of the first worker, which nobody hears.
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

/// The status after one reconcile of a job whose workers have succeeded.
async fn completed(reports: Arc<dyn observe::Reports>) -> RLTrainingJobStatus {
    let server = Server::new(Box::new(|_, _| None));
    let context = Context { reports, ..context(&server) };
    for idx in 0..2 {
        let mut exit = fixtures::exit(0, 1_700_000_000);
        if idx == 0 {
            exit.message = termination::message(&last_report());
        }
        let worker = Worker { phase: WorkerPhase::Succeeded, exit: Some(exit), ..fixtures::worker(idx, 1) };
        context.index.enter(&key(), worker);
    }
    let mut status = begun();
    status["progress"] = json!({"step": 38, "numSteps": 60, "reward": 0.5});
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

/// A store that has received all checkpoints and not the last step.
#[derive(Debug)]
struct EarlierReport;

impl observe::Reports for EarlierReport {
    fn latest(&self, _: &JobKey) -> Option<Report> {
        let saved = |step: u64| CheckpointStatus {
            step,
            path: String::new(),
            digest: String::new(),
            world_size: None,
            latest: step == 60,
            time: "2026-01-01T00:00:00Z".into(),
        };
        let progress = Progress { step: 59, num_steps: 60, ..Progress::default() };
        let checkpoints = Some(vec![saved(40), saved(60)]);
        Some(Report { attempt: 1, progress: Some(progress), checkpoints, ..Report::default() })
    }

    fn left_by(&self, worker: &Worker) -> Option<Report> {
        observe::Reports::left_by(&crate::progress::Reports::new(), worker)
    }
}

#[tokio::test]
async fn the_last_report_of_a_worker_says_how_a_training_ended_and_drops_no_checkpoint() {
    let status = completed(Arc::new(EarlierReport)).await;
    let steps: Vec<u64> = status.checkpoints.iter().map(|checkpoint| checkpoint.step).collect();
    assert_eq!((status.progress.unwrap().step, steps), (60, vec![40, 60]));
}
