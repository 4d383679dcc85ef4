//! The kstatus of a job in each of its states, as Flux and others read it: computed by Flux's own library.

#![expect(clippy::unwrap_used, reason = "a test panics where it fails")]

use std::io::Write as _;
use std::process::Stdio;
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use rlt_api::Reason;
use rlt_api::status::{Phase, RLTrainingJobStatus};
use rlt_objects::job::Job;
use rlt_objects::prepare::Prepared;
use rlt_objects::queue::{NO_QUEUE, Queueing};
use rlt_objects::worker::{Exit, Worker, WorkerPhase};
use rlt_operator::decide::{self, ApplyFailure, Decision, ReconcileInput, RefusedJob, Report};
use rlt_operator::nodes::NodeStates;
use serde_json::{Value, json};

fn now() -> Timestamp {
    "2026-01-01T10:00:00Z".parse().unwrap()
}

fn prepared(run_policy: &Value) -> Prepared {
    let mut manifest: Value =
        serde_saphyr::from_str(include_str!("../../../examples/quickstart/job.yaml")).unwrap();
    manifest["spec"]["runPolicy"] = run_policy.clone();
    let job: Job = serde_json::from_value(manifest).unwrap();
    Prepared::new(&job).unwrap()
}

fn worker(phase: WorkerPhase, attempt: u32, exit_code: Option<i32>) -> Arc<Worker> {
    let exit = exit_code.map(|code| Exit {
        code,
        reason: "Error".into(),
        message: "last words".into(),
        finished_at: Some(now()),
    });
    Arc::new(Worker {
        name: "quickstart-trainer-0".into(),
        uid: "u".into(),
        resource_version: 1,
        idx: 0,
        attempt,
        phase,
        is_ready: phase == WorkerPhase::Running,
        exit: exit.map(Box::new),
        ..Worker::default()
    })
}

/// A job's life: its desired state, and the next exit of its worker.
struct Life {
    status: RLTrainingJobStatus,
    run_policy: Value,
    queueing: Queueing,
}

impl Life {
    fn begin(run_policy: Value) -> Self {
        Self { status: RLTrainingJobStatus::default(), run_policy, queueing: NO_QUEUE }
    }

    /// Decides until nothing changes any more.
    fn then(mut self, worker: Option<Arc<Worker>>, report: Option<Report>) -> Self {
        for _ in 0..8 {
            let decision = self.decide(worker.as_slice(), report.as_ref());
            if std::mem::replace(&mut self.status, decision.status.clone()) == decision.status {
                break;
            }
        }
        self
    }

    fn decide(&self, workers: &[Arc<Worker>], report: Option<&Report>) -> Decision {
        decide::decide(&ReconcileInput {
            prepared: &prepared(&self.run_policy),
            status: &self.status,
            generation: 1,
            is_tracked: false,
            is_copy: false,
            workers,
            nodes: &NodeStates::new(),
            node_labels: None,
            report,
            launchers_due: None,
            deleting_claim: None,
            queueing: &self.queueing,
            now: now(),
        })
    }

    fn running() -> Self {
        Self::begin(json!({})).then(Some(worker(WorkerPhase::Running, 1, None)), None)
    }

    fn with(self, run_policy: Value) -> Self {
        Self { run_policy, ..self }
    }

    /// A queue has not let the job in.
    fn queued() -> Self {
        let queueing = Queueing { queue: Some("team".into()), is_served: true, ..NO_QUEUE };
        Self { queueing, ..Self::begin(json!({})) }
    }
}

fn trained() -> Report {
    let progress = json!({"step": 3, "numSteps": 60});
    Report {
        attempt: 1,
        progress: serde_json::from_value(progress).unwrap(),
        checkpoints: None,
        ..Report::default()
    }
}

/// Each state with the expected kstatus.
fn states() -> Vec<(&'static str, &'static str, RLTrainingJobStatus)> {
    let run = worker(WorkerPhase::Running, 1, None);
    let failed = |code| Some(worker(WorkerPhase::Failed, 1, Some(code)));
    let quota = ApplyFailure { reason: Reason::WorkersRefused, message: "quota".into(), needs_action: true };
    let refused = Life::begin(json!({})).decide(&[], None).failed(quota.clone(), now());
    let succeeded = Some(worker(WorkerPhase::Succeeded, 1, Some(0)));
    let unfinished = Life::running().then(succeeded, None).decide(&[], None).failed(quota, now());
    let invalid = rlt_objects::prepare::Invalid::Problems(vec!["spec.model: is missing".into()]);
    let new = RLTrainingJobStatus::default();
    let job = RefusedJob { status: &new, generation: 1, is_suspended: false, has_pods: false };
    let invalid = decide::refuse(&job, &invalid, now());
    let suspend = json!({"suspend": true});
    vec![
        ("starting", "InProgress", Life::begin(json!({})).then(None, None).status),
        ("running", "Current", Life::running().status),
        ("training", "Current", Life::running().then(Some(run.clone()), Some(trained())).status),
        ("restarting", "InProgress", Life::running().then(failed(75), None).then(None, None).status),
        ("suspending", "InProgress", Life::running().with(suspend.clone()).then(Some(run), None).status),
        ("suspended", "Current", Life::running().with(suspend).then(None, None).status),
        ("queued", "Current", Life::queued().then(None, None).status),
        (
            "complete",
            "Current",
            Life::running().then(Some(worker(WorkerPhase::Succeeded, 1, Some(0))), None).status,
        ),
        ("failed", "Failed", Life::running().then(failed(78), None).status),
        ("refused", "Failed", refused.status),
        ("complete, but not cleaned up", "InProgress", unfinished.status),
        ("invalid", "Failed", invalid.status),
    ]
}

/// The CRD's default for a job whose status was not written yet.
fn unseen() -> Value {
    let definition = rlt_api::custom_resource_definition().unwrap();
    let default = "/spec/versions/0/schema/openAPIV3Schema/properties/status/default";
    definition.pointer(default).unwrap().clone()
}

#[test]
fn flux_sees_a_job_in_progress_until_it_runs_and_failed_when_it_cannot() {
    let Some(mut kstatus) = rlt_cluster::kstatus().unwrap() else { return };
    let object = |status: Value, generation: i64| {
        json!({
            "apiVersion": rlt_api::API_VERSION, "kind": rlt_api::KIND,
            "metadata": {"name": "adding", "namespace": "team", "generation": generation}, "status": status,
        })
    };
    let mut cases = vec![("unseen".to_owned(), "InProgress", object(unseen(), 1))];
    for (name, expected, status) in states() {
        cases.push((name.to_owned(), expected, object(serde_json::to_value(status).unwrap(), 1)));
    }
    let running = serde_json::to_value(Life::running().status).unwrap();
    cases.push(("changed".to_owned(), "InProgress", object(running.clone(), 2)));
    let mut deleted = object(running, 1);
    deleted["metadata"]["deletionTimestamp"] = "2026-01-01T10:00:00Z".into();
    cases.push(("deleted".to_owned(), "Terminating", deleted));

    let mut child = kstatus.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    for (_, _, object) in &cases {
        writeln!(input, "{object}").unwrap();
    }
    drop(input);
    let answer = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    let lines: Vec<_> = answer.lines().collect();
    assert_eq!(lines.len(), cases.len(), "{answer}");
    for ((name, expected, object), line) in cases.iter().zip(lines) {
        assert!(line.starts_with(&format!("{expected}: ")), "{name}: {line}\n{object:#}");
    }
}

/// The example workflow, and its conditions in each state of a job, evaluated by Argo's own libraries.
#[test]
fn a_workflow_of_argo_waits_for_a_job_until_its_phase_says_how_it_ended() {
    let Some(mut conditions) = rlt_cluster::conditions().unwrap() else { return };
    let example = include_str!("../../../examples/argo-workflows/workflow.yaml");
    let workflow: Value = serde_saphyr::from_str(example).unwrap();
    let resource = &workflow["spec"]["templates"][0]["resource"];
    let manifest = resource["manifest"].as_str().unwrap().replace("generateName: adding-", "name: adding");
    assert!(rlt_api::validate(&manifest).is_ok(), "{:?}", rlt_api::validate(&manifest));
    let mut cases = vec![("unseen", "waiting", unseen())];
    for (name, _, status) in states() {
        let expected = match name {
            "complete" | "complete, but not cleaned up" => "succeeded",
            "failed" => "failed",
            _ => "waiting",
        };
        cases.push((name, expected, serde_json::to_value(status).unwrap()));
    }
    let mut child = conditions.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    for (_, _, status) in &cases {
        let question = json!({
            "success": resource["successCondition"], "failure": resource["failureCondition"],
            "object": {"status": status},
        });
        writeln!(input, "{question}").unwrap();
    }
    drop(input);
    let answer = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    let answers: Vec<_> = answer.lines().collect();
    assert_eq!(answers.len(), cases.len(), "{answer}");
    for ((name, expected, status), answer) in cases.iter().zip(answers) {
        assert_eq!(answer, *expected, "{name}: {}", status["phase"]);
    }
}

#[test]
fn the_phase_is_one_word_for_each_state() {
    let phases: Vec<_> =
        states().into_iter().map(|(name, _, status)| (name, status.phase.unwrap())).collect();
    for (name, phase) in phases {
        let expected = match name {
            "running" | "training" => Phase::Running,
            "suspended" | "queued" => Phase::Suspended,
            "complete" | "complete, but not cleaned up" => Phase::Succeeded,
            "failed" => Phase::Failed,
            _ => Phase::Pending,
        };
        assert_eq!(phase, expected, "{name}");
    }
}
