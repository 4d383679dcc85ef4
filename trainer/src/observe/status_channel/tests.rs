//! Proves the reports of a step, a stage and an end.

use std::collections::BTreeMap;

use rlt_storage::error_chain;
use rlt_storage::run_folder::RunFolderError;

use super::*;
use crate::observe::tracking::Stage as TrackedStage;
use crate::run::error::TrainError;

fn step(step: u64, values: &[(&str, f64)]) -> StepMetrics {
    let values = values.iter().map(|&(name, value)| (name.to_owned(), value)).collect::<BTreeMap<_, _>>();
    StepMetrics::new(TrackedStage::Training, step, values.into_iter().collect())
}

#[test]
fn a_step_without_an_evaluation_keeps_the_last_held_out_reward() {
    let mut progress = Progress::default();
    let evaluated = [("critic/rewards/mean", 0.25), ("val-core/reward/mean", 0.5), ("timing_s/step", 2.0)];
    take_step(&mut progress, &step(1, &evaluated));
    take_step(&mut progress, &step(2, &[("critic/rewards/mean", 0.75), ("timing_s/step", 3.0)]));
    assert_eq!((progress.step, progress.reward, progress.held_out_reward), (2, Some(0.75), Some(0.5)));
    assert_eq!(progress.stage(), Stage::Training);
    assert_eq!(progress.time_spent.unwrap().step_seconds, 5.0);
}

#[test]
fn a_result_that_was_there_has_its_last_values_and_no_step_of_this_process() {
    let evaluated = [("critic/rewards/mean", 0.25), ("val-core/reward/mean", 0.5), ("timing_s/step", 2.0)];
    let last = [("critic/rewards/mean", 0.75), ("timing_s/step", 3.0)];
    for (steps, values) in [
        (vec![step(8, &evaluated), step(9, &last)], (Some(0.75), Some(0.5))),
        // A run without a log of metrics.
        (Vec::new(), (None, None)),
    ] {
        let mut report = ReportRequest::default();
        take_result(&mut report, 9, &steps);
        assert_eq!(report.metrics.get("critic/rewards/mean").copied(), values.0);
        let progress = report.progress.unwrap();
        assert_eq!((progress.stage(), progress.step, progress.num_steps), (Stage::Training, 9, 9));
        assert_eq!((progress.reward, progress.held_out_reward), values);
        let spent = progress.time_spent.unwrap();
        assert_eq!((spent.step_seconds, spent.resumed_after_step), (0.0, 9));
    }
}

#[test]
fn an_error_ends_with_its_code_and_all_of_its_causes() {
    let source = std::io::Error::other("the disk is gone");
    let error = TrainError::RunFolder(RunFolderError::Io { act: "write", path: "runs/a".into(), source });
    let ending = ending(Err((error.exit_code(), error_chain(&error))));
    assert_eq!((ending.outcome(), ending.exit_code), (Outcome::Failed, 75));
    assert!(
        ending.message.contains("failed to write `runs/a`") && ending.message.ends_with("the disk is gone"),
        "{ending:?}"
    );
}

#[test]
fn a_stop_on_request_is_no_failure() {
    let stopped = ending(Ok(ExitCode::Preempted));
    assert_eq!((stopped.outcome(), stopped.exit_code, &*stopped.message), (Outcome::Stopped, 80, ""));
    assert_eq!(ending(Ok(ExitCode::Success)).outcome(), Outcome::Complete);
}

#[test]
fn without_an_operator_every_call_does_nothing() {
    let channel = StatusChannel::default();
    channel.begin_stage(TrackedStage::Training, 0, 3);
    channel.end_step(&step(1, &[]));
    channel.checkpoints(&[]);
    channel.finish(Ok(ExitCode::Success));
}

#[test]
fn the_last_report_of_the_first_rank_is_a_termination_message_and_of_no_other() {
    let channel = |rank| {
        let settings = Settings {
            address: "https://127.0.0.1:1".into(),
            ca_file: "/nowhere/ca".into(),
            token_file: "/nowhere/token".into(),
            source: rlt_channel::Source { rank, ..rlt_channel::Source::default() },
            pace: rlt_channel::client::Pace::default(),
        };
        let channel =
            StatusChannel { client: Some(Client::start(settings).unwrap()), pace: Mutex::default() };
        channel.begin_stage(TrackedStage::Training, 0, 3);
        channel.end_step(&step(3, &[("critic/rewards/mean", 0.5)]));
        channel
    };
    let message = channel(0).termination_message().unwrap();
    let progress = rlt_channel::termination::report_in(&message).unwrap().progress.unwrap();
    assert_eq!((progress.step, progress.num_steps, progress.reward), (3, 3, Some(0.5)));
    assert_eq!(channel(1).termination_message(), None);
    assert_eq!(StatusChannel::default().termination_message(), None);
}
