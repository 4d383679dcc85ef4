//! Restarts in place: a pod's own restarts count like the operator's.

use std::collections::BTreeMap;

use rlt_api::Reason;
use rlt_api::failure::restarts_line;

use super::super::retries_left;
use super::*;

fn restarted(attempt: u32, num_crashes: u32) -> Report {
    Report { attempt, restarts: [(FailureCause::Signalled, num_crashes)].into(), ..Report::default() }
}

#[test]
fn each_restart_in_place_counts_once_against_the_budgets_of_attempts() {
    let workers = || vec![runs(0), runs(1)];
    let first = reported(json!({}), &running(1, 90), workers(), Some(&restarted(1, 2)));
    assert_eq!(first.status.retries_used, [(FailureCause::Signalled, 2)].into());
    assert_eq!(first.status.failures_by_cause, [(FailureCause::Signalled, 2)].into());
    assert_eq!((first.status.attempt, first.delete.len(), first.start.len()), (Some(1), 0, 0), "no new pod");
    let events = first.events(&running(1, 90));
    let event = events.iter().find(|event| event.message.contains("restarted in place, 2 times")).unwrap();
    assert!(event.is_warning && event.reason == Reason::Failure(FailureCause::Signalled));
    let again = reported(json!({}), &first.status, workers(), Some(&restarted(1, 2)));
    assert_eq!(again.status, first.status);
    assert!(again.events(&first.status).is_empty());
    // One of three crashes is left: the next crash uses it up, and the crash after that ends the job.
    let next = decided(json!({}), &first.status, vec![failed(0, 139, 10), runs(1)]);
    assert_eq!((next.status.attempt, next.status.restarts_in_place.len()), (Some(2), 0));
    let end =
        decided(json!({}), &RLTrainingJobStatus { attempt: Some(1), ..next.status }, vec![failed(0, 139, 9)]);
    assert_eq!(condition(&end, ConditionType::Failed), (ConditionStatus::True, "Signalled"));
}

#[test]
fn a_report_of_an_earlier_attempt_restarts_nothing_of_this_one() {
    let decision = reported(json!({}), &running(2, 90), vec![runs(0), runs(1)], Some(&restarted(1, 2)));
    assert!(!decision.status.retries_used.contains_key(&FailureCause::Signalled));
    assert!(decision.status.restarts_in_place.is_empty());
}

#[test]
fn unreported_restarts_are_counted_from_the_termination_message() {
    let mut ended = failed(0, 139, 10);
    let line = restarts_line(&BTreeMap::from([(FailureCause::Signalled, 3)]));
    ended.exit.as_mut().unwrap().message = format!("error: rank 1 was killed by signal 11{line}");
    let decision = reported(json!({}), &running(1, 90), vec![ended, runs(1)], Some(&restarted(1, 1)));
    assert_eq!(decision.status.failures_by_cause, [(FailureCause::Signalled, 4)].into());
    assert_eq!(condition(&decision, ConditionType::Failed), (ConditionStatus::True, "Signalled"));
}

#[test]
fn restarts_in_a_termination_message_count_once_where_the_next_attempt_begins() {
    let mut ended = failed(0, 139, 10);
    let line = restarts_line(&BTreeMap::from([(FailureCause::RetryableIo, 1)]));
    ended.exit.as_mut().unwrap().message = format!("error: rank 1 was killed by signal 11{line}");
    let next = decided(json!({}), &running(1, 90), vec![ended, runs(1)]);
    let counts = [(FailureCause::RetryableIo, 1), (FailureCause::Signalled, 1)];
    assert_eq!((next.status.attempt, &next.status.failures_by_cause), (Some(2), &counts.into()));
    assert!(next.status.restarts_in_place.is_empty(), "the next attempt has restarted nothing yet");
}

#[test]
fn restarts_that_were_reported_during_a_suspension_count_when_the_job_resumes() {
    let suspended = RLTrainingJobStatus { active_since: None, ..running(1, 90) };
    let resumed = reported(json!({}), &suspended, Vec::new(), Some(&restarted(1, 2)));
    assert_eq!(resumed.status.failures_by_cause, [(FailureCause::Signalled, 2)].into());
    assert_eq!((resumed.status.attempt, resumed.status.restarts_in_place.len()), (Some(2), 0));
}

#[test]
fn only_a_pod_with_all_ranks_may_restart_them_and_only_as_often_as_attempts_could() {
    let with = |num_workers, ranks, policy| {
        let mut prepared = prepared(num_workers, policy);
        prepared.plan.worker_groups[0].ranks_per_worker = ranks;
        let used = [(FailureCause::PeerLost, 2)].into();
        retries_left(&prepared, &RLTrainingJobStatus { retries_used: used, ..RLTrainingJobStatus::default() })
    };
    assert_eq!(with(1, 8, json!({})).map(|left| (left.crash, left.io)), Some((1, 5)));
    assert_eq!(with(2, 8, json!({})), None, "ranks elsewhere may live on");
    assert_eq!(with(1, 1, json!({})), None);
    let rules = json!({"failurePolicy": {"rules": [{"action": "FailJob", "onCauses": ["Signalled"]}]}});
    assert_eq!(with(1, 8, rules), None, "rules of the job decide");
}
