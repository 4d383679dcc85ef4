//! How often what is tried again, how soon, and where.

use rlt_api::status::CheckpointStatus;

use super::*;

#[test]
fn budgets_are_counted_by_cause() {
    let mut status = running(1, 90);
    status.retries_used = [(FailureCause::Signalled, 2), (FailureCause::NodeLost, 50)].into();
    let third = decided(json!({}), &status, vec![failed(0, 139, 10), runs(1)]);
    assert_eq!(third.status.attempt, Some(2));
    status.retries_used.insert(FailureCause::Signalled, 3);
    let fourth = decided(json!({}), &status, vec![failed(0, 139, 10), runs(1)]);
    let message = fourth.status.last_failure.unwrap().message;
    assert!(message.contains("retries.crash of 3 used up"), "{message}");
    let more = decided(json!({"retries": {"crash": 9}}), &status, vec![failed(0, 139, 10), runs(1)]);
    assert_eq!(more.status.attempt, Some(2));
}

#[test]
fn attempts_that_end_at_their_start_wait_the_longer_the_more_there_were() {
    for (before, wait) in [(None, 0), (Some(1), 5), (Some(2), 10), (Some(4), 40), (Some(40), 300)] {
        let status = RLTrainingJobStatus { short_attempts: before, ..running(1, 5) };
        let decision = decided(json!({"retries": {"io": 99}}), &status, vec![failed(0, 75, 1), runs(1)]);
        assert_eq!(decision.status.attempt_start_time.clone(), Some(ago(-wait)), "after {before:?}");
        let next = decided(json!({}), &decision.status, Vec::new());
        let waits = (wait > 0).then(|| Duration::from_secs(wait.unsigned_abs()));
        assert_eq!(next.requeue_after, waits);
        assert_eq!(next.start.is_empty(), wait > 0);
    }
    let long = RLTrainingJobStatus { short_attempts: Some(4), ..running(1, 90) };
    let decision = decided(json!({}), &long, vec![failed(0, 75, 1), runs(1)]);
    assert_eq!(decision.status.short_attempts, None, "a long attempt is forgiven");
}

#[test]
fn a_failure_after_a_new_checkpoint_is_counted_anew_and_one_at_the_same_place_is_not() {
    let checkpoint = |step| CheckpointStatus {
        step,
        path: String::new(),
        digest: String::new(),
        world_size: None,
        latest: true,
        time: ago(9),
    };
    let report = |step| Report { attempt: 1, progress: None, checkpoints: Some(vec![checkpoint(step)]) };
    let mut status = running(1, 90);
    status.retries_used = [(FailureCause::Signalled, 3)].into();
    status.retries_since_step = Some(20);
    let crash = || vec![failed(0, 139, 10), runs(1)];
    let further = reported(json!({}), &status, crash(), Some(&report(40))).status;
    assert_eq!((further.attempt, further.retries_since_step), (Some(2), Some(40)));
    assert_eq!(further.retries_used, [(FailureCause::Signalled, 1)].into());
    for step in [20, 10] {
        let same = reported(json!({}), &status, crash(), Some(&report(step)));
        assert_eq!(condition(&same, ConditionType::Failed), (ConditionStatus::True, "Signalled"));
    }
}

#[test]
fn a_node_is_remembered_for_what_may_be_its_fault_and_the_least_of_too_many_is_forgotten() {
    let decided_on = |status: &RLTrainingJobStatus, code| {
        decided(json!({"retries": {"failure": 9}}), status, vec![failed(0, code, 10), runs(1)]).status
    };
    for (code, blamed) in [(139, true), (75, true), (1, true), (76, false), (77, false), (80, false)] {
        let status = decided_on(&running(1, 90), code);
        assert_eq!(
            status.failures_by_node,
            if blamed { [("node".into(), 1)].into() } else { [].into() },
            "{code}"
        );
    }
    let mut status = running(1, 90);
    status.failures_by_node = (0..16).map(|idx| (format!("n{idx:02}"), 9 - idx % 9)).collect();
    let status = decided_on(&status, 139);
    assert_eq!(status.failures_by_node.len(), 16);
    assert!(status.failures_by_node.contains_key("node") && !status.failures_by_node.contains_key("n08"));
}

#[test]
fn a_clock_that_ran_ahead_in_the_operator_before_holds_up_no_start() {
    let ahead = RLTrainingJobStatus { short_attempts: Some(3), ..starting(-3600) };
    assert_eq!(decided(json!({}), &ahead, Vec::new()).start, [0, 1]);
    let meant = RLTrainingJobStatus { short_attempts: Some(3), ..starting(-8) };
    assert_eq!(decided(json!({}), &meant, Vec::new()).requeue_after, Some(Duration::from_secs(8)));
    let node_ahead = decided(json!({}), &running(1, 90), vec![failed(0, 76, -3600), runs(1)]);
    assert_eq!(node_ahead.status.attempt, Some(2), "a node's clock that runs ahead");
}
