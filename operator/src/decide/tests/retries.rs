//! Retries: budgets by cause, delays, and avoided nodes.

use rlt_api::status::CheckpointStatus;

use super::*;

fn checkpoint(step: u64) -> CheckpointStatus {
    CheckpointStatus {
        step,
        path: String::new(),
        digest: String::new(),
        world_size: None,
        latest: true,
        time: ago(9),
    }
}

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
fn attempts_that_fail_at_their_start_are_retried_with_growing_delays() {
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
fn a_short_attempt_after_a_new_checkpoint_delays_no_start() {
    let short =
        RLTrainingJobStatus { short_attempts: Some(4), retries_since_step: Some(20), ..running(1, 5) };
    let after = |step, num_restarts_in_place| {
        let report = Report {
            attempt: 1,
            checkpoints: Some(vec![checkpoint(step)]),
            restarts: [(FailureCause::Signalled, num_restarts_in_place)].into(),
            ..Report::default()
        };
        let workers = vec![failed(0, 75, 1), runs(1)];
        let next = reported(json!({"retries": {"io": 99}}), &short, workers, Some(&report)).status;
        (next.short_attempts, next.attempt_start_time)
    };
    for num_restarts_in_place in [0, 1] {
        assert_eq!(after(40, num_restarts_in_place), (Some(0), Some(ago(0))));
        let unchanged = (Some(5), Some(ago(-40)));
        assert_eq!(after(20, num_restarts_in_place), unchanged, "the job has made no progress");
    }
}

/// The launcher of a local run has the same delays after short attempts.
#[test]
fn short_attempts_after_one_with_a_new_checkpoint_are_counted_from_the_first() {
    let report =
        |attempt, step| Report { attempt, checkpoints: Some(vec![checkpoint(step)]), ..Report::default() };
    let mut status =
        RLTrainingJobStatus { short_attempts: Some(4), retries_since_step: Some(20), ..running(1, 5) };
    let mut delays = Vec::new();
    for (attempt, step) in [(1, 40), (2, 40), (3, 40)] {
        let workers = vec![Worker { attempt, ..failed(0, 75, 1) }, Worker { attempt, ..runs(1) }];
        let policy = json!({"retries": {"io": 99}});
        let next = reported(policy, &status, workers, Some(&report(attempt, step))).status;
        delays.push((next.short_attempts, next.attempt_start_time.clone()));
        status = RLTrainingJobStatus { attempt_start_time: Some(ago(5)), ..next };
    }
    assert_eq!(delays, [(Some(0), Some(ago(0))), (Some(1), Some(ago(0))), (Some(2), Some(ago(-5)))]);
}

#[test]
fn a_failure_after_a_new_checkpoint_is_counted_anew_and_one_at_the_same_place_is_not() {
    let report = |step| Report {
        attempt: 1,
        progress: None,
        checkpoints: Some(vec![checkpoint(step)]),
        ..Report::default()
    };
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
fn an_attempt_that_was_not_heard_ends_no_job_because_it_may_have_saved_a_checkpoint() {
    let rules = json!({"failurePolicy": {
        "maxRestarts": 3, "rules": [{"action": "Restart", "onCauses": ["Signalled"]}],
    }});
    for policy in [json!({}), rules] {
        let mut status = running(4, 90);
        status.progress = Some(Progress { step: 9, ..Progress::default() });
        status.retries_used = [(FailureCause::Signalled, 3)].into();
        status.policy_restarts_used = Some(3);
        status.retries_since_step = Some(20);
        let crash = |attempt| vec![Worker { attempt, ..failed(0, 139, 10) }, Worker { attempt, ..runs(1) }];
        let decide_about = |status: &RLTrainingJobStatus, attempt, step: Option<u64>| {
            let checkpoints = step.map(|step| vec![checkpoint(step)]);
            let report = Report { attempt, checkpoints, ..Report::default() };
            reported(policy.clone(), status, crash(attempt), step.map(|_| &report))
        };
        let failed = (ConditionStatus::True, "Signalled");
        let heard = decide_about(&status, 4, Some(20));
        assert_eq!(condition(&heard, ConditionType::Failed), failed);
        let short = RLTrainingJobStatus { attempt_start_time: Some(ago(30)), ..status.clone() };
        assert_eq!(condition(&decide_about(&short, 4, None), ConditionType::Failed), failed);

        let unheard = decide_about(&status, 4, None).status;
        assert_eq!((unheard.attempt, unheard.completion_time.clone()), (Some(5), None));
        let next = RLTrainingJobStatus { attempt_start_time: Some(ago(90)), ..unheard };
        let resumed = decide_about(&next, 5, Some(40)).status;
        assert_eq!((resumed.attempt, resumed.checkpoints[0].step), (Some(6), 40));
        assert_eq!(resumed.retries_since_step, Some(40), "the budget is refilled");
        for step in [Some(20), None] {
            let same = decide_about(&next, 5, step);
            assert_eq!(condition(&same, ConditionType::Failed), failed, "{step:?}");
        }
    }
    let mut never = running(1, 90);
    never.progress = Some(Progress::default());
    let error = decided(json!({}), &never, vec![failed(0, 1, 10), runs(1)]);
    assert_eq!(
        condition(&error, ConditionType::Failed).0,
        ConditionStatus::True,
        "a budget of 0 has no refill"
    );
}

#[test]
fn failures_are_counted_by_node_up_to_a_bound() {
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
    assert_eq!(indices(&decided(json!({}), &ahead, Vec::new()).start), [0, 1]);
    let meant = RLTrainingJobStatus { short_attempts: Some(3), ..starting(-8) };
    assert_eq!(decided(json!({}), &meant, Vec::new()).requeue_after, Some(Duration::from_secs(8)));
    let node_ahead = decided(json!({}), &running(1, 90), vec![failed(0, 76, -3600), runs(1)]);
    assert_eq!(node_ahead.status.attempt, Some(2), "a node's clock that runs ahead");
}

fn with_rules(rules: Value, status: &RLTrainingJobStatus, workers: Vec<Worker>) -> RLTrainingJobStatus {
    decided(json!({"failurePolicy": {"maxRestarts": 2, "rules": rules}}), status, workers).status
}

#[test]
fn the_first_rule_that_matches_decides_before_any_budget() {
    let rules = json!([
        {"name": "licences", "action": "Restart", "onExitCodes": {"operator": "In", "values": [42, 78]}},
        {"action": "Ignore", "onCauses": ["TrainerFailed"], "onExitCodes": {"operator": "NotIn", "values": [1]}},
        {"name": "memory", "action": "FailJob", "onReasons": ["OOMKilled"]},
        {"name": "late", "action": "Ignore", "onReasons": ["OOMKilled", "Error"], "onCauses": ["Diverged"]},
    ]);
    let decided_on = |worker: Worker| with_rules(rules.clone(), &running(1, 90), vec![worker, runs(1)]);
    let oom = || {
        let mut worker = failed(0, 137, 10);
        worker.exit.as_mut().unwrap().reason = "OOMKilled".into();
        worker
    };
    for (worker, goes_on, rule) in [
        (failed(0, 42, 10), true, Some("licences: Restart")),
        (failed(0, 78, 10), true, Some("licences: Restart")),
        (failed(0, 3, 10), true, Some("rules[1]: Ignore")),
        (failed(0, 1, 10), false, None),
        (failed(0, 77, 10), true, Some("late: Ignore")),
        (oom(), false, Some("memory: FailJob")),
    ] {
        let (code, status) = (worker.exit.as_ref().unwrap().code, decided_on(worker));
        let last = status.last_failure.as_ref().unwrap();
        assert_eq!((status.completion_time.is_none(), last.rule.as_deref()), (goes_on, rule), "{code}");
        assert!(rule.is_none() || status.retries_used.is_empty(), "{code} was counted twice");
        let says = |type_| {
            let mut conditions = status.conditions.iter().filter(|one| one.type_ == type_);
            conditions.any(|one| rule.is_none_or(|rule| one.message.contains(rule)))
        };
        assert!(says(if goes_on { ConditionType::Reconciling } else { ConditionType::Failed }), "{code}");
    }
    let later = RLTrainingJobStatus { active_since: Some(ago(900)), ..running(1, 90) };
    let rules = json!([{"action": "Ignore", "onExitCodes": {"operator": "NotIn", "values": [1]}}]);
    let policy = json!({"activeDeadlineSeconds": 100, "failurePolicy": {"rules": rules}});
    let over = decided(policy, &later, vec![runs(0), runs(1)]).status;
    assert_eq!(over.last_failure.unwrap().cause, FailureCause::DeadlineExceeded, "no rule gives more time");
}

#[test]
fn restarts_by_rules_have_a_budget_of_their_own_and_ignored_ones_none() {
    let rule = |action: &str| json!([{"action": action, "onExitCodes": {"operator": "In", "values": [139]}}]);
    let crash = || vec![failed(0, 139, 10), runs(1)];
    let mut status =
        RLTrainingJobStatus { retries_used: [(FailureCause::Signalled, 99)].into(), ..running(1, 90) };
    for attempt in 1..9 {
        let workers = crash().into_iter().map(|worker| Worker { attempt, ..worker }).collect();
        let next = with_rules(rule("Ignore"), &status, workers);
        assert_eq!((next.attempt, next.policy_restarts_used), (Some(attempt + 1), None));
        status = RLTrainingJobStatus {
            attempt_running_time: Some(ago(9)),
            attempt_start_time: Some(ago(90)),
            ..next
        };
    }
    let used = |used| RLTrainingJobStatus { policy_restarts_used: Some(used), ..running(1, 90) };
    assert_eq!(with_rules(rule("Restart"), &used(1), crash()).policy_restarts_used, Some(2));
    let over = with_rules(rule("Restart"), &used(2), crash());
    let message = over.last_failure.unwrap().message;
    assert!(over.completion_time.is_some() && message.contains("maxRestarts of 2"), "{message}");
}

#[test]
fn a_checkpoint_gives_rules_their_restarts_back_and_a_rule_can_avoid_a_node_that_no_cause_would() {
    let checkpoint = CheckpointStatus {
        step: 40,
        path: String::new(),
        digest: String::new(),
        world_size: None,
        latest: true,
        time: ago(9),
    };
    let status = RLTrainingJobStatus {
        policy_restarts_used: Some(2),
        retries_since_step: Some(20),
        checkpoints: vec![checkpoint],
        ..running(1, 90)
    };
    for avoid_node in [false, true] {
        let rules = json!([{"action": "Restart", "avoidNode": avoid_node, "onCauses": ["Diverged"]}]);
        let next = with_rules(rules, &status, vec![failed(0, 77, 10), runs(1)]);
        assert_eq!((next.attempt, next.policy_restarts_used), (Some(2), Some(1)));
        assert_eq!(next.failures_by_node.contains_key("node"), avoid_node);
    }
}

#[test]
fn a_broken_gpu_uses_up_one_retry_on_its_node_and_failures_on_further_nodes_one_each() {
    // Retries that these failures of a GPU have used; `None` once the job has failed.
    let used = |nodes: &[&str], num_workers: u32| {
        let mut status = running(1, 90);
        for node in nodes {
            let mut workers = vec![Worker { node: Some((*node).into()), ..failed(0, 81, 5) }];
            workers.extend((1..num_workers).map(runs));
            let workers: Vec<_> = workers.into_iter().map(Arc::new).collect();
            let counted = decide(&input(&prepared(num_workers, json!({})), &status, &workers)).status;
            if counted.completion_time.is_some() {
                return None;
            }
            status = RLTrainingJobStatus {
                retries_used: counted.retries_used,
                failures_by_cause: counted.failures_by_cause,
                failures_by_node: counted.failures_by_node,
                ..running(1, 90)
            };
        }
        status.retries_used.get(&FailureCause::DeviceFailed).copied()
    };
    for num_workers in [1, 2] {
        assert_eq!(used(&["a"; 12], num_workers), Some(1));
        assert_eq!(used(&["a", "b", "a", "b", "a"], num_workers), Some(2));
        assert_eq!(used(&["a", "b", "c"], num_workers), Some(3));
        assert_eq!(used(&["a", "b", "c", "d"], num_workers), None, "the program may be at fault");
        assert_eq!(used(&["a"; 40], num_workers), None, "it does not go on for ever");
    }
}
