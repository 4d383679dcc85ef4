//! Tests of explanations, one for each way in which a job waits, fails or continues.

use rlt_objects::job::Job;
use rlt_objects::labels;
use rlt_objects::prepare::Prepared;
use rlt_objects::worker::Worker;
use serde_json::{Value, json};

use super::JobSnapshot;
use super::job::explain;
use crate::events::job_event::JobEvent;

const CREATED: &str = "2026-01-01T10:00:00Z";
const SINCE: &str = "2026-01-01T10:01:00Z";
const NOW: &str = "2026-01-01T10:05:00Z";

/// Returns a status in which only the condition `type_` is true.
fn status(type_: &str, reason: &str, message: &str, more: Value) -> Value {
    let condition = json!({
        "type": type_, "status": "True", "lastTransitionTime": SINCE, "reason": reason, "message": message,
    });
    let mut status = json!({
        "observedGeneration": 1, "conditions": [condition], "attempt": 1, "attemptStartTime": SINCE,
        "ready": "0/1", "resolved": {"worldSize": 1, "promptsPerStep": 32, "samplesPerStep": 512,
            "updatesPerStep": 1, "peakMemoryBytes": 3_400_000_000u64},
    });
    status.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    status
}

fn starting(more: Value) -> Value {
    status("Reconciling", "WorkersStarting", "workers are being started", more)
}

fn failed(cause: &str, message: &str, mut failure: Value, more: Value) -> Value {
    let common = json!({"attempt": 2, "cause": cause, "message": message, "time": NOW});
    failure.as_object_mut().unwrap().extend(common.as_object().unwrap().clone());
    let cause: rlt_api::FailureCause = serde_json::from_value(cause.into()).unwrap();
    failure["advice"] = cause.advice().into();
    let mut end = json!({"lastFailure": failure, "completionTime": NOW, "attempt": 2});
    end.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    status("Failed", &format!("{cause:?}"), message, end)
}

/// Returns a snapshot of the quickstart's job with changes to `spec.workers` and `spec.runPolicy`.
fn snapshot(workers: Value, run_policy: Value, status: Value) -> JobSnapshot {
    let example = include_str!("../../../../examples/quickstart/job.yaml");
    let mut manifest: Value = serde_saphyr::from_str(example).unwrap();
    manifest["spec"]["workers"] = workers;
    manifest["spec"]["runPolicy"] = run_policy;
    manifest["metadata"] = json!({
        "name": "adding", "namespace": "team", "uid": "u", "generation": 1, "creationTimestamp": CREATED,
    });
    manifest["status"] = status;
    let job: Job = serde_json::from_value(manifest).unwrap();
    JobSnapshot {
        prepared: Prepared::new(&job),
        job,
        workers: Vec::new(),
        events: Vec::new(),
        now: NOW.parse().unwrap(),
    }
}

fn managed_by(controller: &str, status: Value) -> JobSnapshot {
    let mut snapshot = plain(status);
    let mut spec: Value = serde_json::from_str(&snapshot.job.spec).unwrap();
    spec["managedBy"] = controller.into();
    snapshot.job.spec = spec.to_string();
    snapshot.prepared = Prepared::new(&snapshot.job);
    snapshot
}

fn plain(status: Value) -> JobSnapshot {
    snapshot(json!({}), json!({}), status)
}

fn worker(idx: u32, attempt: u32, node: Option<&str>, status: Value) -> Worker {
    let pod = json!({
        "metadata": {
            "name": format!("adding-trainer-{idx}"), "namespace": "team", "uid": format!("{idx}"),
            "labels": {labels::WORKER_IDX: idx.to_string(), labels::ATTEMPT: attempt.to_string()},
            "ownerReferences": [{
                "apiVersion": rlt_api::API_VERSION, "kind": rlt_api::KIND, "name": "adding", "uid": "u",
            }],
        },
        "spec": {"containers": [], "nodeName": node},
        "status": status,
    });
    Worker::read(&serde_json::from_value(pod).unwrap()).unwrap().1
}

fn unschedulable(message: &str) -> Worker {
    let scheduled =
        json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message});
    worker(0, 1, None, json!({"phase": "Pending", "conditions": [scheduled]}))
}

fn container(state: Value) -> Value {
    json!([{"name": "trainer", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": state}])
}

fn waits_for(reason: &str, message: &str) -> Worker {
    let state = json!({"waiting": {"reason": reason, "message": message}});
    worker(0, 1, Some("node-a"), json!({"phase": "Pending", "containerStatuses": container(state)}))
}

fn ended(idx: u32, attempt: u32, code: i32, message: &str) -> Worker {
    let state = json!({"terminated": {"exitCode": code, "reason": "Error", "message": message}});
    worker(idx, attempt, Some("node-a"), json!({"phase": "Failed", "containerStatuses": container(state)}))
}

fn warning(name: &str, reason: &str, message: &str) -> JobEvent {
    JobEvent {
        time: Some(NOW.into()),
        is_warning: true,
        kind: "Pod".into(),
        name: name.into(),
        reason: reason.into(),
        message: message.into(),
        count: 1,
    }
}

macro_rules! explained {
    ($snapshot:expr) => {
        insta::assert_snapshot!(explain(&$snapshot).to_string())
    };
}

#[test]
fn no_controller_has_reconciled_it() {
    explained!(plain(json!({})));
}

#[test]
fn a_change_was_not_seen() {
    let mut snapshot = plain(status("PodsReady", "WorkersRunning", "1/1 workers are ready", json!({})));
    snapshot.job.metadata.generation = Some(2);
    explained!(snapshot);
}

#[test]
fn pods_exist_before_the_first_status_is_written() {
    let mut snapshot = plain(json!({}));
    snapshot.workers.push(worker(0, 1, None, json!({"phase": "Pending"})));
    let explanation = explain(&snapshot);
    assert!(explanation.summary.contains("is being started"), "{explanation}");
    assert!(explanation.change.is_empty(), "{explanation}");
}

#[test]
fn a_job_continues_although_its_specification_would_be_refused() {
    let message = "the job continues under the specification that it began with: hostNetwork";
    let refused = json!({
        "type": "Stalled", "status": "False", "lastTransitionTime": SINCE, "reason": "PodNotAllowed",
        "message": message,
    });
    let mut runs = status("PodsReady", "WorkersRunning", "1/1 workers are ready", json!({}));
    runs["conditions"].as_array_mut().unwrap().push(refused);
    let explanation = explain(&plain(runs));
    assert!(explanation.evidence.contains(&message.to_owned()), "{explanation}");
    assert!(!explanation.summary.contains("does not start"), "{explanation}");
}

#[test]
fn a_job_that_has_begun_is_not_said_to_start_when_it_is_refused() {
    let explain_attempt = |attempt: Value| {
        let mut refused = status("Stalled", "PodNotAllowed", "hostNetwork", json!({}));
        refused["attempt"] = attempt;
        explain(&plain(refused)).summary
    };
    assert!(explain_attempt(json!(2)).contains("is held"));
    assert!(explain_attempt(Value::Null).contains("does not start"));
}

#[test]
fn another_controller_works_on_it() {
    explained!(managed_by("example.com/other", json!({})));
}

#[test]
fn multikueue_runs_it_in_another_cluster() {
    explained!(managed_by("kueue.x-k8s.io/multikueue", json!({})));
    let runs = status("PodsReady", "WorkersRunning", "2/2 workers are ready", json!({}));
    let elsewhere = explain(&managed_by("kueue.x-k8s.io/multikueue", runs.clone()));
    assert_eq!(elsewhere, explain(&plain(runs)), "what that cluster reports is explained as anything else");
}

#[test]
fn no_node_has_the_resources() {
    let workers = json!({
        "device": "Cuda", "resources": {"cpu": "64", "memory": "512Gi"}, "nodeSelector": {"zone": "a"},
    });
    let mut snapshot = snapshot(workers, json!({"startupDeadlineSeconds": 600}), starting(json!({})));
    snapshot.workers.push(unschedulable(
        "0/9 nodes are available: 1 Insufficient memory, 1 node(s) didn't match Pod's node affinity/selector, \
         1 node(s) were unschedulable, 2 Insufficient cpu, 2 node(s) had untolerated taint {nvidia.com/gpu: present}, \
         2 Insufficient nvidia.com/gpu. no new claims to deallocate, preemption: 0/9 nodes are available: 9 Preemption \
         is not helpful for scheduling.",
    ));
    explained!(snapshot);
}

#[test]
fn the_claim_has_no_volume() {
    let mut snapshot = snapshot(json!({"storage": {"size": "10Gi"}}), json!({}), starting(json!({})));
    snapshot.workers.push(unschedulable(
        "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found",
    ));
    explained!(snapshot);
}

#[test]
fn an_unknown_message_of_the_scheduler_is_shown_as_it_is() {
    let mut snapshot = plain(starting(json!({})));
    snapshot.workers.push(unschedulable("no nodes available to schedule pods"));
    explained!(snapshot);
}

#[test]
fn the_image_is_missing() {
    let mut snapshot = snapshot(json!({"image": "example.com/trainer:3"}), json!({}), starting(json!({})));
    snapshot.workers.push(waits_for("ImagePullBackOff", "Back-off pulling image \"example.com/trainer:3\""));
    let pull = "Failed to pull image \"example.com/trainer:3\": manifest unknown";
    snapshot.events.push(warning("adding-trainer-0", "Failed", pull));
    explained!(snapshot);
}

#[test]
fn the_image_is_private() {
    let mut snapshot = snapshot(json!({"image": "example.com/trainer:3"}), json!({}), starting(json!({})));
    snapshot.workers.push(waits_for("ErrImagePull", "pull access denied, repository does not exist"));
    explained!(snapshot);
}

#[test]
fn a_secret_is_missing() {
    let mut snapshot = plain(starting(json!({})));
    snapshot.workers.push(waits_for("CreateContainerConfigError", "secret \"hub\" not found"));
    explained!(snapshot);
}

#[test]
fn a_volume_cannot_be_mounted() {
    let mut snapshot = plain(starting(json!({})));
    snapshot.workers.push(waits_for("ContainerCreating", ""));
    let trouble = "Multi-Attach error for volume \"v\": it is already used by other pods";
    snapshot.events.push(warning("adding-trainer-0", "FailedAttachVolume", trouble));
    explained!(snapshot);
}

#[test]
fn its_deleted_claim_is_not_gone_yet() {
    let message =
        "claim `adding-storage` is being deleted: workers start once it is gone and another one is made";
    let waits = status("Reconciling", "ClaimTerminating", message, json!({}));
    let explanation = explain(&plain(waits));
    assert!(explanation.summary.contains(" waits: its claim is being deleted (attempt 1, "), "{explanation}");
    assert_eq!(explanation.evidence, [message]);
}

#[test]
fn a_quota_is_used_up() {
    let message = "pod adding-trainer-0: pods \"adding-trainer-0\" is forbidden: exceeded quota: team, requested: \
                   limits.memory=4Gi,requests.cpu=2, used: limits.memory=14Gi,requests.cpu=1, limited: \
                   limits.memory=16Gi,requests.cpu=8";
    explained!(plain(status("Stalled", "WorkersRefused", message, json!({}))));
}

#[test]
fn a_priority_class_is_missing() {
    let message = "pod adding-trainer-0: pods \"adding-trainer-0\" is forbidden: no PriorityClass with name high was found";
    explained!(plain(status("Stalled", "WorkersRefused", message, json!({}))));
}

#[test]
fn the_cluster_refuses_for_a_reason_of_its_own() {
    let message = "pod adding-trainer-0: admission webhook \"policy\" denied the request: no owner label";
    explained!(plain(status("Stalled", "WorkersRefused", message, json!({}))));
}

#[test]
fn an_object_cannot_be_changed() {
    let message = "failed to change `adding-storage`: spec.resources.requests.storage: Forbidden: field can not be less \
                   than previous value";
    explained!(plain(status("Stalled", "ObjectRefused", message, json!({}))));
}

#[test]
fn a_name_is_taken() {
    let message = "`adding-trainer` exists already and belongs to Deployment `web`";
    explained!(plain(status("Stalled", "NameConflict", message, json!({}))));
}

#[test]
fn the_specification_breaks_rules() {
    let message = "the specification has 1 problem(s)";
    let workers = json!({"resources": {"memory": "much"}, "count": 0});
    explained!(snapshot(workers, json!({}), status("Stalled", "InvalidSpec", message, json!({}))));
}

#[test]
fn a_person_suspended_it() {
    let checkpoints = json!([{"step": 20, "path": "p", "digest": "d", "latest": true, "time": SINCE}]);
    let more = json!({"checkpoints": checkpoints});
    explained!(snapshot(
        json!({}),
        json!({"suspend": true}),
        status("Suspended", "Suspended", "held back", more)
    ));
}

#[test]
fn a_queue_holds_it_back() {
    let words =
        "waits in queue research: couldn't assign flavors to pod set trainer: insufficient quota for cpu";
    explained!(plain(status("Suspended", "Queued", words, json!({}))));
}

#[test]
fn a_job_names_a_queue_that_does_not_exist() {
    let words = "waits for queue research, but the cluster has no Kueue that serves v1beta2";
    explained!(plain(status("Suspended", "QueueMissing", words, json!({}))));
}

#[test]
fn attempts_ended_early_and_the_next_one_waits() {
    let failure = json!({
        "attempt": 2, "cause": "RetryableIo", "message": "exit code 75: connect to the hub: timed out",
        "advice": "see whether the hub can be reached", "time": SINCE,
    });
    let more = json!({
        "attempt": 3, "attemptStartTime": "2026-01-01T10:05:20Z", "lastFailure": failure,
        "failuresByCause": {"RetryableIo": 2},
    });
    explained!(plain(status("Reconciling", "WaitingToRestart", "attempts ended early", more)));
}

#[test]
fn pods_of_the_attempt_before_are_not_gone() {
    let more = json!({"attempt": 2, "failuresByCause": {"NodeLost": 1}});
    let mut snapshot = plain(status("Reconciling", "Restarting", "attempt 2 begins", more));
    snapshot.workers.push(worker(0, 1, Some("node-a"), json!({"phase": "Running"})));
    explained!(snapshot);
}

#[test]
fn a_job_starts_as_it_should() {
    let mut snapshot = plain(starting(json!({})));
    snapshot.workers.push(worker(0, 1, Some("node-a"), json!({"phase": "Pending"})));
    explained!(snapshot);
}

#[test]
fn a_job_trains() {
    let progress = json!({
        "step": 23, "numSteps": 60, "remainingSeconds": 100, "stepTime": "2026-01-01T10:04:48Z",
    });
    let more = json!({
        "progress": progress, "attempt": 2, "traceId": "0af7651916cd43dd8448eb211c80319c",
        "failuresByCause": {"Disrupted": 1, "OutOfMemory": 1},
    });
    explained!(plain(status("Progressing", "StepsAdvancing", "the trainer finishes steps", more)));
}

#[test]
fn a_job_trains_and_its_checkpoints_cannot_be_saved() {
    let warning = "has lost 2 checkpoints in a row: No space left on device";
    let progress = json!({
        "step": 23, "numSteps": 60, "warning": warning, "warningReasons": ["CheckpointNotSaved"],
    });
    let more = json!({ "progress": progress });
    let said = explain(&plain(status("Progressing", "CheckpointNotSaved", warning, more))).to_string();
    assert!(said.contains("trains: step 23 of 60, attempt 1\n  the run has lost 2 checkpoints"), "{said}");
    assert!(said.contains("what to change:\n  make room on the volume"), "{said}");
}

#[test]
fn a_job_trains_or_is_complete_and_its_metrics_have_a_symptom() {
    let warning = "earns nothing: the reward of every sample is 0, in all of its 20 steps";
    let progress =
        json!({"step": 20, "numSteps": 60, "warning": warning, "warningReasons": ["RunsOnCpu", "NoReward"]});
    let more = json!({ "progress": progress });
    for (type_, reason) in [("Progressing", "NoReward"), ("Complete", "StepsFinished")] {
        let said = explain(&plain(status(type_, reason, warning, more.clone()))).to_string();
        assert!(said.contains("\n  the run earns nothing: "), "{said}");
        assert!(said.contains("what to change:\n  compare answers in completions.jsonl"), "{said}");
    }
}

#[test]
fn a_job_is_complete_without_any_reward() {
    let complete = |reward: f64| {
        let more = json!({"progress": {"step": 5, "numSteps": 5, "heldOutReward": reward}});
        explain(&plain(status("Complete", "StepsFinished", "all workers ended well", more))).to_string()
    };
    assert!(
        complete(0.0).contains("\n  reward 0.000\nwhat to change:\n  compare answers"),
        "{}",
        complete(0.0)
    );
    assert!(complete(0.1).ends_with("nothing is to be done\n"), "{}", complete(0.1));
}

#[test]
fn a_trainer_ran_out_of_memory() {
    let failure = json!({"pod": "adding-trainer-0", "node": "node-a", "exitCode": 137});
    let message = "exit code 137: OOMKilled (spec.runPolicy.retries.outOfMemory of 1 used up)";
    let end = failed("OutOfMemory", message, failure, json!({"failuresByCause": {"OutOfMemory": 2}}));
    let mut snapshot = snapshot(json!({"resources": {"memory": "2Gi"}}), json!({}), end);
    snapshot.workers.push(ended(0, 2, 137, ""));
    explained!(snapshot);
}

#[test]
fn the_node_ran_out_of_memory() {
    let failure = json!({"pod": "adding-trainer-0", "node": "node-a", "exitCode": 137});
    explained!(plain(failed("OutOfMemory", "exit code 137: OOMKilled", failure, json!({}))));
}

#[test]
fn a_training_diverged() {
    let failure = json!({"pod": "adding-trainer-0", "node": "node-a", "exitCode": 77});
    let more = json!({"progress": {"step": 31, "numSteps": 60, "reward": 0.12, "kl": 9.5}});
    let message = "exit code 77: gradients were not finite for 5 steps";
    explained!(plain(failed("Diverged", message, failure, more)));
}

#[test]
fn a_rule_of_its_own_failed_it() {
    let failure =
        json!({"pod": "adding-trainer-0", "node": "node-a", "exitCode": 42, "rule": "licences: Restart"});
    let message = "exit code 42: no licence (by spec.runPolicy.failurePolicy, licences: Restart, of whose \
                   maxRestarts of 3 none is left)";
    let counts = json!({"failuresByCause": {"TrainerFailed": 4}});
    explained!(plain(failed("TrainerFailed", message, failure, counts)));
}

#[test]
fn a_rank_was_lost() {
    let failure = json!({"pod": "adding-trainer-0", "node": "node-a", "exitCode": 76});
    let mut snapshot = plain(failed("PeerLost", "exit code 76: rank 1 is gone", failure, json!({})));
    snapshot.workers.push(ended(0, 2, 76, "rank 1 is gone"));
    snapshot.workers.push(ended(1, 2, 139, "segmentation fault"));
    explained!(snapshot);
}

#[test]
fn a_job_took_too_long() {
    let more = json!({"activeSeconds": 3700});
    let message = "the job was active for more than 3600 s";
    explained!(snapshot(
        json!({}),
        json!({"activeDeadlineSeconds": 3600}),
        failed("DeadlineExceeded", message, json!({}), more)
    ));
}

#[test]
fn a_job_found_no_node_in_time() {
    let failure = json!({"pod": "adding-trainer-0"});
    let message = "not all workers ran within 60 s: 0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 \
                   nodes are available: 1 No preemption victims found for incoming pod.";
    let end = failed("NotScheduled", message, failure, json!({}));
    explained!(snapshot(json!({"resources": {"cpu": "8"}}), json!({"startupDeadlineSeconds": 60}), end));
}

#[test]
fn a_job_is_complete() {
    let more = json!({
        "completionTime": NOW, "progress": {"step": 60, "numSteps": 60, "reward": 0.9, "heldOutReward": 0.951},
    });
    explained!(plain(status("Complete", "StepsFinished", "all workers ended well", more)));
}
