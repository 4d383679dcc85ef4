//! Outcome of a chaos run: what status and Events tell, and the weights beside those of an undisturbed run.

use std::collections::BTreeMap;

use rlt_api::FailureCause;
use rlt_api::status::RLTrainingJobStatus;
use serde_json::Value;

use super::manifests::{NAME, OUTPUT};
use super::quiet_run;
use super::site::{Site, num_failures};

/// Causes by which the faults end attempts; the others end none. A claim that is deleted while pods start
/// disrupts them.
const CAUSES: [FailureCause; 4] =
    [FailureCause::Signalled, FailureCause::PeerLost, FailureCause::RetryableIo, FailureCause::Disrupted];

/// Checks weights, status, Events and objects of a complete job with so many steps.
pub(super) async fn check(site: &mut Site, num_steps: u64) {
    check_training(site, num_steps);
    let status = site.test.status(NAME).await;
    check_status(site, &status);
    check_events(site, &status);
    for (object, uid) in &site.deleted {
        let present = object.uid(site.test.cluster);
        assert!(present.as_ref().is_some_and(|present| present != uid), "{object:?} was not made again");
    }
}

/// Every attempt that ended has its cause, and every kill is among them.
fn check_status(site: &Site, status: &RLTrainingJobStatus) {
    let causes = &status.failures_by_cause;
    assert!(causes.keys().all(|cause| CAUSES.contains(cause)), "{causes:?}");
    // The suspension ended one attempt more.
    assert_eq!(status.attempt, Some(num_failures(status) + 2), "{causes:?}");
    let kills = [FailureCause::Signalled, FailureCause::PeerLost];
    let num_crashes: u32 = kills.iter().filter_map(|cause| causes.get(cause)).sum();
    assert!(num_crashes >= site.num_kills, "{} kills, of which the status has {causes:?}", site.num_kills);
    assert!(status.last_failure.is_some());
}

/// Every cause of a failure, the refused settings, checkpoints that were not saved and the suspension have an
/// Event. That of the end was awaited.
fn check_events(site: &Site, status: &RLTrainingJobStatus) {
    let others = ["PodNotAllowed", "Suspended"].map(str::to_owned).into_iter();
    let causes = reasons_of_causes(status).into_iter();
    for reason in causes.chain(others).chain(site.expected_events.iter().cloned()) {
        let reasons = &site.event_reasons;
        assert!(reasons.contains(&reason), "no Event has the reason {reason}: {reasons:?}");
    }
}

/// Reasons of the Events of all causes of failures in a status.
pub(super) fn reasons_of_causes(status: &RLTrainingJobStatus) -> Vec<String> {
    let causes = status.failures_by_cause.keys().map(|cause| serde_json::to_value(cause).unwrap());
    causes.filter_map(|cause| cause.as_str().map(str::to_owned)).collect()
}

/// Metrics and weights are those of an undisturbed run on this machine. A full disk loses lines of the
/// metrics, and nothing else.
fn check_training(site: &mut Site, num_steps: u64) {
    let quiet_folder = site.quiet_run.take().unwrap().finish(num_steps);
    let folder = &site.disk.folder;
    let step = |line: &Value| line["step"].as_u64().unwrap();
    let quiet: BTreeMap<u64, Value> =
        quiet_folder.steps(quiet_run::OUTPUT).into_iter().map(|line| (step(&line), line)).collect();
    assert!(quiet.keys().copied().eq(1..=num_steps), "the undisturbed run has every step");
    let disturbed = folder.steps(OUTPUT);
    assert!(disturbed.is_sorted_by(|a, b| step(a) < step(b)), "a step is there twice");
    for line in &disturbed {
        assert_eq!(Some(line), quiet.get(&step(line)));
    }
    assert_eq!(disturbed.last().map(step), Some(num_steps));
    assert!(disturbed.iter().any(|line| line["actor/grad_norm"].as_f64() > Some(0.0)));
    assert!(folder.adapter(OUTPUT) == quiet_folder.adapter(quiet_run::OUTPUT), "the adapters differ");
}
