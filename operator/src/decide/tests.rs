//! Tests of decisions, one module for each subject.

mod claims;
mod deletion;
mod evacuation;
mod groups;
mod restarts;
mod retries;
mod spares;
mod topology;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::SignedDuration;
use rlt_api::spec::Device;
use rlt_api::status::{ConditionStatus, ConditionType, Progress, RLTrainingJobStatus};
use rlt_api::symptoms::SymptomKind;
use rlt_api::{FailureCause, Reason};
use rlt_objects::worker::{Explanation, Waiting, Worker, WorkerPhase};
use serde_json::{Value, json};

use super::fixtures::{exit, indices, input, now, prepared, worker};
use super::{Decision, JobEvent, JobState, ReconcileInput, Report, decide};
use crate::nodes::NodeStates;

fn ago(seconds: i64) -> String {
    (now() - SignedDuration::from_secs(seconds)).to_string()
}

/// Returns the status of a job whose attempt runs, and began this number of seconds ago.
fn running(attempt: u32, seconds: i64) -> RLTrainingJobStatus {
    RLTrainingJobStatus {
        attempt: Some(attempt),
        active_since: Some(ago(seconds)),
        attempt_start_time: Some(ago(seconds)),
        attempt_running_time: Some(ago(seconds)),
        start_time: Some(ago(seconds)),
        ..RLTrainingJobStatus::default()
    }
}

/// Returns the status of a job whose first attempt began this number of seconds ago and does not run yet.
fn starting(seconds: i64) -> RLTrainingJobStatus {
    RLTrainingJobStatus { attempt_running_time: None, ..running(1, seconds) }
}

fn runs(idx: u32) -> Worker {
    Worker { phase: WorkerPhase::Running, is_ready: true, node: Some("node".into()), ..worker(idx, 1) }
}

fn failed(idx: u32, code: i32, seconds_ago: i64) -> Worker {
    let at = now().as_second() - seconds_ago;
    Worker { phase: WorkerPhase::Failed, is_ready: false, exit: Some(exit(code, at)), ..runs(idx) }
}

fn succeeded(idx: u32) -> Worker {
    let at = now().as_second() - 9;
    Worker { phase: WorkerPhase::Succeeded, is_ready: false, exit: Some(exit(0, at)), ..runs(idx) }
}

fn decided(policy: Value, status: &RLTrainingJobStatus, workers: Vec<Worker>) -> Decision {
    reported(policy, status, workers, None)
}

fn reported(
    policy: Value,
    status: &RLTrainingJobStatus,
    workers: Vec<Worker>,
    report: Option<&Report>,
) -> Decision {
    on_nodes(policy, status, workers, report, &NodeStates::new())
}

fn on_nodes(
    policy: Value,
    status: &RLTrainingJobStatus,
    workers: Vec<Worker>,
    report: Option<&Report>,
    nodes: &NodeStates,
) -> Decision {
    let workers: Vec<_> = workers.into_iter().map(Arc::new).collect();
    decide(&ReconcileInput { generation: 3, nodes, report, ..input(&prepared(2, policy), status, &workers) })
}

fn condition(decision: &Decision, type_: ConditionType) -> (ConditionStatus, &str) {
    let condition = decision.status.conditions.iter().find(|condition| condition.type_ == type_).unwrap();
    (condition.status, &condition.reason)
}

#[test]
fn a_new_job_gets_all_of_its_workers_in_the_first_round() {
    let decision = decided(json!({}), &RLTrainingJobStatus::default(), Vec::new());
    assert_eq!(indices(&decision.start), [0, 1]);
    assert!(decision.needs_children);
    assert_eq!(decision.status.attempt, Some(1));
    assert_eq!(decision.status.ready.as_deref(), Some("0/2"));
    assert_eq!(decision.status.observed_generation, Some(3));
    assert_eq!(condition(&decision, ConditionType::Reconciling), (ConditionStatus::True, "WorkersStarting"));
    assert_eq!(condition(&decision, ConditionType::Succeeded).0, ConditionStatus::Unknown);
    assert_eq!(decision.status.conditions.len(), ConditionType::ALL.len());
}

#[test]
fn a_job_says_before_it_starts_whether_its_workers_ask_for_gpus() {
    let said = |device: Device| {
        let mut prepared = prepared(1, json!({}));
        prepared.plan.worker_groups[0].device = device;
        let decision = decide(&input(&prepared, &RLTrainingJobStatus::default(), &[]));
        let mut conditions = decision.status.conditions.into_iter();
        let message = conditions.find(|one| one.type_ == ConditionType::Reconciling).unwrap().message;
        (decision.status.resolved.unwrap().gpus_per_worker, message)
    };
    assert_eq!(said(Device::Cuda), (1, "workers are being started, each with a GPU".into()));
    let (num_gpus, message) = said(Device::Cpu);
    assert!(num_gpus == 0 && message.contains("without GPUs: spec.workers.device"), "{message}");
}

#[test]
fn a_trainer_that_computes_on_the_cpu_beside_a_gpu_is_seen_in_status_and_events() {
    let warning = "computes on the CPU: libcublas.so.13 cannot be loaded".to_owned();
    let report = Report {
        attempt: 1,
        progress: Some(Progress { step: 1, warning: Some(warning.clone()), ..Progress::default() }),
        ..Report::default()
    };
    let before = running(1, 60);
    let decision = reported(json!({}), &before, vec![runs(0), runs(1)], Some(&report));
    assert_eq!(condition(&decision, ConditionType::Progressing), (ConditionStatus::True, "RunsOnCpu"));
    let events = decision.events(&before);
    assert!(events.iter().any(|note| note.is_warning && note.message == warning), "{events:?}");
    // An operator without the report has the warning from the status, and does not repeat the Event.
    let later = reported(json!({}), &decision.status, vec![runs(0), runs(1)], None);
    assert_eq!(condition(&later, ConditionType::Progressing), (ConditionStatus::True, "RunsOnCpu"));
    assert!(later.events(&decision.status).is_empty());
}

#[test]
fn a_result_that_was_there_already_is_in_the_status_and_an_event_also_when_it_is_reported_late() {
    let progress = Progress { step: 60, num_steps: 60, result_found: true, ..Progress::default() };
    let report = Report { attempt: 1, progress: Some(progress.clone()), ..Report::default() };
    let before = running(1, 5);
    let done = || vec![succeeded(0), succeeded(1)];
    let ended = reported(json!({}), &before, done(), None);
    assert_eq!((ended.state, ended.status.progress.clone()), (JobState::Complete, None));
    for before in [before, ended.status] {
        let decision = reported(json!({}), &before, done(), Some(&report));
        assert_eq!(decision.status.progress.as_ref(), Some(&progress));
        let events = decision.events(&before);
        let is_found = |event: &&JobEvent| event.reason == rlt_api::Reason::ResultFound;
        assert_eq!(events.iter().filter(is_found).count(), 1, "{events:?}");
        let again = reported(json!({}), &decision.status, done(), Some(&report));
        assert!(!again.events(&decision.status).iter().any(|event| is_found(&event)));
    }
}

#[test]
fn each_symptom_of_a_training_is_a_reason_of_its_own_in_status_and_events() {
    let reported_with = |reasons: &[&str], before: &RLTrainingJobStatus| {
        let progress = Progress {
            step: 30,
            warning: (!reasons.is_empty()).then(|| reasons.join("; ")),
            warning_reasons: reasons.iter().map(|reason| (*reason).to_owned()).collect(),
            ..Progress::default()
        };
        let report = Report { attempt: 1, progress: Some(progress), ..Report::default() };
        reported(json!({}), before, vec![runs(0), runs(1)], Some(&report))
    };
    let reasons_of = |events: Vec<JobEvent>| -> Vec<String> {
        let warnings = events.into_iter().filter(|event| event.is_warning);
        warnings.map(|event| event.reason.name()).collect()
    };
    let before = reported_with(&[], &running(1, 60)).status;
    for kind in SymptomKind::ALL.map(SymptomKind::name) {
        let decision = reported_with(&[kind], &before);
        assert_eq!(condition(&decision, ConditionType::Progressing), (ConditionStatus::True, kind));
        assert_eq!(reasons_of(decision.events(&before)), [kind]);
    }
    for names in [&["OtherWarning"][..], &["OfALaterRelease", "OfAnother"][..]] {
        let later = reported_with(names, &before);
        let told = (ConditionStatus::True, "OtherWarning");
        assert_eq!(condition(&later, ConditionType::Progressing), told, "nothing is known of the CPU");
        assert_eq!(reasons_of(later.events(&before)), ["OtherWarning"]);
    }
    let later = reported_with(&["OfALaterRelease"], &before).status;
    assert_eq!(reasons_of(reported_with(&["OfALaterRelease"], &later).events(&later)), [""; 0]);
    let another = reported_with(&["OfALaterRelease", "OfAnother"], &later);
    let [event] = another.events(&later).try_into().unwrap();
    assert_eq!((event.reason, &*event.message), (Reason::OtherWarning, "OfALaterRelease; OfAnother"));
    assert_eq!(condition(&another, ConditionType::Progressing), (ConditionStatus::True, "OtherWarning"));
    let on_cpu = reported_with(&["RunsOnCpu"], &before).status;
    let both = reported_with(&["RunsOnCpu", "EntropyCollapse"], &on_cpu);
    assert_eq!(condition(&both, ConditionType::Progressing), (ConditionStatus::True, "RunsOnCpu"));
    assert_eq!(reasons_of(both.events(&on_cpu)), ["EntropyCollapse"], "the other one was told before");
}

#[test]
fn checkpoints_are_not_healthy_from_one_that_is_not_saved_to_the_next_that_is() {
    let healthy = |decision: &Decision| {
        let (status, reason) = condition(decision, ConditionType::CheckpointHealthy);
        (status, reason.to_owned())
    };
    let with_warning = |warning: Option<&str>, before: &RLTrainingJobStatus| {
        let progress = Progress {
            step: 30,
            warning: warning.map(|reason| format!("{reason}: the disk is full")),
            warning_reasons: warning.map(str::to_owned).into_iter().collect(),
            ..Progress::default()
        };
        let report = Report { attempt: 1, progress: Some(progress), ..Report::default() };
        reported(json!({}), before, vec![runs(0), runs(1)], Some(&report))
    };
    let unsaved = with_warning(Some("CheckpointNotSaved"), &running(1, 60));
    assert_eq!(healthy(&unsaved), (ConditionStatus::False, "CheckpointNotSaved".to_owned()));
    for warning in [None, Some("EntropyCollapse")] {
        let saved = with_warning(warning, &unsaved.status);
        assert_eq!(healthy(&saved), (ConditionStatus::Unknown, "NoCheckpoint".to_owned()));
    }
    // The last checkpoint of a complete job is saved, even if its last report was lost.
    let complete = decided(json!({}), &unsaved.status, vec![succeeded(0), succeeded(1)]);
    assert_eq!(healthy(&complete).0, ConditionStatus::Unknown);
}

/// Two warnings with the same reason would lead the reader of one to the setting of the other.
#[test]
fn a_job_is_warned_once_as_it_begins_of_each_setting_under_a_reason_of_its_own() {
    let started = |changes: Value| {
        let mut job = super::fixtures::job(&json!({}));
        let mut spec: Value = serde_json::from_str(&job.spec).unwrap();
        for (path, value) in changes.as_object().unwrap() {
            let (section, field) = path.split_once('.').unwrap();
            spec[section][field] = value.clone();
        }
        job.spec = spec.to_string();
        let prepared = rlt_objects::prepare::Prepared::new(&job).unwrap();
        let before = RLTrainingJobStatus::default();
        let first = decide(&input(&prepared, &before, &[]));
        let later = decide(&input(&prepared, &first.status, &[]));
        let told = |decision: &Decision, before: &RLTrainingJobStatus| {
            let is_of_specification = |event: &JobEvent| {
                event.is_warning && [Reason::NoStorage, Reason::OpenSecret].contains(&event.reason)
            };
            let events = decision.events(before).into_iter().filter(is_of_specification);
            events.map(|event| (event.reason, event.message)).collect::<Vec<_>>()
        };
        assert_eq!(told(&later, &first.status), [], "it is warned of once");
        let warnings = prepared.job.warnings().into_iter();
        let texts: Vec<_> = warnings.map(|warning| (warning.reason, warning.message.to_owned())).collect();
        assert_eq!(told(&first, &before), texts, "Events have the texts of rlctl");
        texts.into_iter().map(|(reason, _)| reason).collect::<Vec<_>>()
    };
    let secret = json!([{"name": "WANDB_API_KEY", "value": "abc"}]);
    let uri = "s3://bucket/run";
    assert_eq!(started(json!({})), [Reason::NoStorage]);
    assert_eq!(started(json!({"workers.env": secret.clone()})), [Reason::NoStorage, Reason::OpenSecret]);
    assert_eq!(started(json!({"workers.env": secret, "checkpoint.uri": uri})), [Reason::OpenSecret]);
    for lasting in [
        json!({"workers.storage": {"claimName": "runs"}}),
        json!({"workers.storage": {"size": "1Gi"}}),
        json!({"checkpoint.uri": uri}),
    ] {
        assert!(started(lasting.clone()).is_empty(), "{lasting}");
    }
}

/// Times in a status are whole seconds. A start time that is rounded up would delay the start.
#[test]
fn a_job_starts_at_once_at_every_part_of_a_second() {
    for milliseconds in [1, 499, 500, 999] {
        let decision = decide(&ReconcileInput {
            now: now() + SignedDuration::from_millis(milliseconds),
            ..input(&prepared(2, json!({})), &RLTrainingJobStatus::default(), &[])
        });
        assert_eq!(indices(&decision.start), [0, 1], "at {milliseconds} ms");
    }
}

#[test]
fn a_running_gang_is_settled_and_reported_once() {
    let decision = decided(json!({}), &starting(9), vec![runs(0), runs(1)]);
    assert_eq!(decision.state, JobState::Running);
    assert_eq!(decision.status.ready.as_deref(), Some("2/2"));
    assert_eq!(condition(&decision, ConditionType::Reconciling).0, ConditionStatus::False);
    assert_eq!(condition(&decision, ConditionType::PodsReady), (ConditionStatus::True, "WorkersRunning"));
    assert_eq!(decision.events(&starting(9)).len(), 1);
    let again = decided(json!({}), &decision.status, vec![runs(0), runs(1)]);
    assert_eq!(again.status, decision.status);
    assert!(again.events(&decision.status).is_empty());
}

#[test]
fn every_exit_of_a_worker_is_classified_by_cause_and_reaction() {
    // Code, cause, and whether another attempt follows by default.
    let table = [
        (1, FailureCause::TrainerFailed, false),
        (2, FailureCause::BadConfig, false),
        (75, FailureCause::RetryableIo, true),
        (76, FailureCause::PeerLost, true),
        (77, FailureCause::Diverged, false),
        (78, FailureCause::BadConfig, false),
        (79, FailureCause::CorruptCheckpoint, true),
        (80, FailureCause::Disrupted, true),
        (81, FailureCause::DeviceFailed, true),
        (137, FailureCause::Signalled, true),
        (139, FailureCause::Signalled, true),
    ];
    for (code, cause, goes_on) in table {
        let decision = decided(json!({}), &running(1, 90), vec![failed(0, code, 10), runs(1)]);
        let failure = decision.status.last_failure.clone().unwrap();
        assert_eq!((failure.cause, failure.exit_code, failure.attempt), (cause, Some(code), 1));
        assert_eq!(failure.pod.as_deref(), Some("quickstart-trainer-0"));
        assert_eq!(failure.node.as_deref(), Some("node"));
        assert!(!failure.advice.is_empty());
        assert_eq!(decision.status.failures_by_cause[&cause], 1);
        assert_eq!(decision.status.attempt, Some(if goes_on { 2 } else { 1 }), "code {code}");
        assert_eq!(decision.status.completion_time.is_none(), goes_on, "code {code}");
        assert!(decision.start.is_empty() && decision.delete.is_empty(), "the status is written first");
        assert_eq!(decision.requeue_after, Some(Duration::ZERO));
        let stalled = condition(&decision, ConditionType::Stalled).0;
        assert_eq!(stalled == ConditionStatus::True, !goes_on);
    }
}

#[test]
fn kubernetes_own_words_name_causes_that_exit_codes_do_not() {
    let explain = |reason: &str| Some(Box::new(Explanation { reason: reason.into(), message: "why".into() }));
    let killed = |reason: &str| {
        let mut worker = failed(0, 137, 10);
        worker.exit.as_mut().unwrap().reason = reason.into();
        worker
    };
    let disrupted = |reason| Worker { disruption: explain(reason), ..failed(0, 137, 10) };
    let without_exit = |reason| Worker { exit: None, explanation: explain(reason), ..failed(0, 1, 10) };
    let table = [
        (killed("OOMKilled"), FailureCause::OutOfMemory),
        (disrupted("PreemptionByScheduler"), FailureCause::Disrupted),
        (disrupted("EvictionByEvictionAPI"), FailureCause::Disrupted),
        (disrupted("DeletionByTaintManager"), FailureCause::NodeLost),
        (disrupted("DeletionByPodGC"), FailureCause::NodeLost),
        (without_exit("Evicted"), FailureCause::RetryableIo),
        (without_exit("OutOfcpu"), FailureCause::Disrupted),
        (Worker { is_deleting: true, ..runs(0) }, FailureCause::Disrupted),
    ];
    for (worker, cause) in table {
        let decision = decided(json!({}), &running(1, 90), vec![worker.clone(), runs(1)]);
        assert_eq!(decision.status.last_failure.unwrap().cause, cause, "{worker:?}");
    }
}

#[test]
fn the_first_worker_that_failed_names_the_cause_and_the_loss_of_a_peer_waits_for_it() {
    let both = decided(json!({}), &running(1, 90), vec![failed(0, 76, 9), failed(1, 78, 5)]);
    assert_eq!(both.status.last_failure.unwrap().cause, FailureCause::BadConfig);
    let first = decided(json!({}), &running(1, 90), vec![failed(0, 79, 5), failed(1, 75, 9)]);
    assert_eq!(first.status.last_failure.unwrap().cause, FailureCause::RetryableIo);
    let unclear = decided(json!({}), &running(1, 90), vec![failed(0, 76, 1), runs(1)]);
    assert_eq!(unclear.status.last_failure, None);
    assert_eq!(unclear.requeue_after, Some(Duration::from_secs(2)));
}

#[test]
fn a_deleted_worker_restarts_a_running_gang_and_is_replaced_in_a_starting_one() {
    let ran = decided(json!({}), &running(1, 90), vec![runs(0)]);
    assert_eq!(ran.status.attempt, Some(2));
    assert_eq!(ran.status.last_failure.unwrap().pod.as_deref(), Some("quickstart-trainer-1"));
    let started = decided(json!({}), &starting(9), vec![runs(0)]);
    assert_eq!((started.status.attempt, indices(&started.start)), (Some(1), vec![1]));
}

#[test]
fn the_next_attempt_takes_a_place_only_once_it_is_empty() {
    let status = RLTrainingJobStatus { attempt: Some(2), ..starting(0) };
    let leaving = Worker { is_deleting: true, ..runs(0) };
    let decision = decided(json!({}), &status, vec![leaving.clone(), runs(1)]);
    assert!(decision.start.is_empty());
    assert_eq!(decision.delete.len(), 1, "a pod that is already terminating is not deleted again");
    let decision = decided(json!({}), &status, vec![leaving]);
    assert_eq!(indices(&decision.start), [1]);
}

#[test]
fn suspension_stops_the_clock_and_resumption_is_a_new_attempt() {
    let policy = json!({"suspend": true, "activeDeadlineSeconds": 100});
    let written = decided(policy.clone(), &running(1, 40), vec![runs(0), runs(1)]);
    assert_eq!((written.delete.len(), written.requeue_after), (0, Some(Duration::ZERO)));
    assert_eq!((written.status.active_seconds, &written.status.active_since), (Some(40), &None));
    let stopping = decided(policy.clone(), &written.status, vec![runs(0), runs(1)]);
    assert_eq!(stopping.state, JobState::Suspending);
    assert_eq!(stopping.delete.len(), 2);
    assert!(stopping.delete.iter().all(|deletion| deletion.grace_seconds.is_none()), "time for a checkpoint");
    assert_eq!((stopping.status.active_seconds, &stopping.status.active_since), (Some(40), &None));
    let stopped = decided(policy, &stopping.status, Vec::new());
    assert_eq!(condition(&stopped, ConditionType::Suspended), (ConditionStatus::True, "Suspended"));
    assert_eq!(condition(&stopped, ConditionType::Reconciling).0, ConditionStatus::False);
    let resumed = decided(json!({"activeDeadlineSeconds": 100}), &stopped.status, Vec::new());
    assert_eq!(resumed.status.attempt, Some(2));
    assert!(resumed.start.is_empty(), "the status is written first");
    let started = decided(json!({"activeDeadlineSeconds": 100}), &resumed.status, Vec::new());
    assert_eq!(indices(&started.start), [0, 1]);
    assert_eq!(started.requeue_after, Some(Duration::from_secs(60)), "the deadline excludes the pause");
}

#[test]
fn workers_of_a_suspended_attempt_keep_their_time_for_a_checkpoint_though_the_next_one_begins() {
    let suspended = RLTrainingJobStatus { active_since: None, ..running(1, 40) };
    let resumed = decided(json!({}), &suspended, vec![runs(0), runs(1)]);
    assert_eq!((resumed.status.attempt, resumed.status.last_failure.clone()), (Some(2), None));
    let stopping = decided(json!({}), &resumed.status, vec![runs(0), runs(1)]);
    let graces: Vec<_> = stopping.delete.iter().map(|deletion| deletion.grace_seconds).collect();
    assert_eq!(graces, [None, None]);
}

#[test]
fn a_job_made_suspended_starts_nothing_and_makes_nothing() {
    let decision = decided(json!({"suspend": true}), &RLTrainingJobStatus::default(), Vec::new());
    assert_eq!(decision.state, JobState::Suspended);
    assert!(!decision.needs_children && decision.start.is_empty());
    assert_eq!(decision.status.attempt, None);
}

#[test]
fn a_job_is_complete_when_all_workers_ended_well_even_while_it_is_being_suspended() {
    for policy in [json!({}), json!({"suspend": true})] {
        let decision = decided(policy, &running(1, 90), vec![succeeded(0), succeeded(1)]);
        assert_eq!(decision.state, JobState::Complete);
        assert_eq!(condition(&decision, ConditionType::Succeeded), (ConditionStatus::True, "StepsFinished"));
        assert_eq!(decision.status.completion_time, Some(ago(0)));
        assert_eq!(decision.status.active_seconds, Some(90));
    }
    let half = decided(json!({}), &running(1, 90), vec![succeeded(0), runs(1)]);
    assert_eq!(half.state, JobState::Running);
}

#[test]
fn deadlines_end_a_job_and_report_what_it_waited_for() {
    let active = decided(json!({"activeDeadlineSeconds": 90}), &running(1, 90), vec![runs(0), runs(1)]);
    assert_eq!(active.status.last_failure.unwrap().cause, FailureCause::DeadlineExceeded);
    let policy = json!({"startupDeadlineSeconds": 60});
    let unscheduled = Waiting::Unschedulable("0/3 nodes are available".into());
    let image = Explanation { reason: "ErrImagePull".into(), message: "no such image".into() };
    let table = [
        (unscheduled, FailureCause::NotScheduled, "0/3 nodes"),
        (Waiting::Container(image), FailureCause::StartFailed, "no such image"),
    ];
    for (waiting, cause, said) in table {
        let late = Worker { waiting: Some(Box::new(waiting)), ..worker(0, 1) };
        let early = decided(policy.clone(), &starting(59), vec![late.clone(), runs(1)]);
        assert_eq!((early.status.last_failure, early.requeue_after), (None, Some(Duration::from_secs(1))));
        let failure =
            decided(policy.clone(), &starting(60), vec![late, runs(1)]).status.last_failure.unwrap();
        assert_eq!(failure.cause, cause);
        assert!(failure.message.contains(said), "{}", failure.message);
    }
}

#[test]
fn a_trainer_without_a_new_step_is_started_again_and_one_that_never_reported_is_left_alone() {
    let policy = json!({"stallDeadlineSeconds": 30});
    // The clock of the rank is late by an hour.
    let report = |attempt, seconds| Report {
        attempt,
        progress: Some(Progress { step: 7, step_time: Some(ago(3600)), ..Progress::default() }),
        without_step: Some(Duration::from_secs(seconds)),
        ..Report::default()
    };
    let workers = || vec![runs(0), runs(1)];
    let silent = decided(policy.clone(), &running(1, 999), workers());
    assert_eq!(silent.state, JobState::Running);
    let stale = reported(policy.clone(), &running(2, 999), workers(), Some(&report(1, 999)));
    assert_eq!(stale.status.progress, None, "what an earlier attempt said is not of this one");
    let fresh = reported(policy.clone(), &running(1, 999), workers(), Some(&report(1, 10)));
    assert_eq!(condition(&fresh, ConditionType::Progressing), (ConditionStatus::True, "StepsAdvancing"));
    assert_eq!(fresh.requeue_after, Some(Duration::from_secs(20)));
    let begun = reported(policy.clone(), &running(1, 5), workers(), Some(&report(1, 40)));
    assert_eq!((begun.state, begun.requeue_after), (JobState::Running, Some(Duration::from_secs(25))));
    let stuck = reported(policy, &running(1, 999), workers(), Some(&report(1, 30)));
    assert_eq!(stuck.status.last_failure.unwrap().cause, FailureCause::NoProgress);
}

#[test]
fn the_clean_pod_policy_holds_on_every_way_to_the_end() {
    let ends: [(&[Worker], Value); 3] = [
        (&[succeeded(0), succeeded(1)], json!({})),
        (&[failed(0, 78, 9), runs(1)], json!({})),
        (&[runs(0), runs(1)], json!({"activeDeadlineSeconds": 1})),
    ];
    for (workers, policy) in ends {
        for (clean, expected) in [("Running", None), ("All", Some(2)), ("None", Some(0))] {
            let mut policy = policy.clone();
            policy["cleanPodPolicy"] = clean.into();
            let ended = decided(policy.clone(), &running(1, 90), workers.to_vec());
            assert!(ended.status.completion_time.is_some());
            let settled = decided(policy, &ended.status, workers.to_vec());
            let alive = workers.iter().filter(|worker| !worker.is_finished()).count();
            assert_eq!(settled.delete.len(), expected.unwrap_or(alive), "{clean}");
            assert_eq!(settled.status, ended.status, "cleaning up changes nothing that was said");
        }
    }
}

#[test]
fn a_job_is_deleted_after_its_ttl_unless_gitops_would_apply_it_again() {
    let ended = RLTrainingJobStatus { completion_time: Some(ago(60)), ..running(1, 90) };
    let policy = |policy: &str| json!({"ttlSecondsAfterFinished": 60, "ttlPolicy": policy});
    let at = |policy: Value, is_tracked| {
        decide(&ReconcileInput {
            generation: 3,
            is_tracked,
            ..input(&prepared(2, policy), &ended, &[Arc::new(succeeded(0))])
        })
    };
    assert!(at(policy("KeepTracked"), false).delete_job);
    assert!(at(policy("Delete"), true).delete_job);
    let kept = at(policy("KeepTracked"), true);
    assert!(!kept.delete_job);
    assert_eq!(kept.delete.len(), 1, "its pods go all the same");
    let early = at(json!({"ttlSecondsAfterFinished": 70}), false);
    assert_eq!((early.delete_job, early.requeue_after), (false, Some(Duration::from_secs(10))));
    assert_eq!(at(json!({}), false).requeue_after, None);
}

#[test]
fn a_copy_of_a_job_is_left_to_multikueue_which_would_run_it_again_if_it_were_gone() {
    let ended = RLTrainingJobStatus { completion_time: Some(ago(60)), ..running(1, 90) };
    let policy = json!({"ttlSecondsAfterFinished": 0, "ttlPolicy": "Delete"});
    let settled = |is_copy| {
        let prepared = prepared(2, policy.clone());
        decide(&ReconcileInput { is_copy, ..input(&prepared, &ended, &[Arc::new(succeeded(0))]) })
    };
    assert!(settled(false).delete_job);
    let copy = settled(true);
    assert_eq!((copy.delete_job, copy.delete.len(), copy.requeue_after), (false, 1, None));
}

#[test]
fn a_condition_keeps_its_time_while_only_its_reason_changes() {
    let first = decided(json!({}), &RLTrainingJobStatus::default(), Vec::new());
    let mut status = first.status.clone();
    for condition in &mut status.conditions {
        condition.last_transition_time = "2026-01-01T00:00:00Z".into();
    }
    let ready = decided(json!({}), &status, vec![runs(0), runs(1)]);
    for (before, after) in status.conditions.iter().zip(&ready.status.conditions) {
        let has_moved = after.last_transition_time != before.last_transition_time;
        assert_eq!(has_moved, before.status != after.status, "{:?}", after.type_);
    }
}
