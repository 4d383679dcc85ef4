//! The explanation of a job: finds the one decisive cause in a snapshot of it.

use rlt_api::Reason;
use rlt_api::status::{Condition, ConditionStatus, ConditionType, RLTrainingJobStatus};
use rlt_api::symptoms::SymptomKind;
use rlt_objects::prepare::Invalid;

use super::explanation::{Explanation, checkpoint, earlier, when_true};
use super::snapshot::JobSnapshot;
use super::{failed, refused, waiting};
use crate::measure::duration;
use crate::status::{seconds_between, status_of};

/// Explains why a job is as it is.
pub(crate) fn explain(snapshot: &JobSnapshot) -> Explanation {
    let status = status_of(&snapshot.job);
    let said = is_left_alone(snapshot, &status)
        .or_else(|| unseen(snapshot, &status))
        .or_else(|| ended(snapshot, &status))
        .or_else(|| invalid(snapshot, &status))
        .or_else(|| suspended(snapshot, &status))
        .or_else(|| refused::refused(&status))
        .or_else(|| waiting::waiting(snapshot, &status))
        .unwrap_or_else(|| running(snapshot, &status))
        .because(continues(&status))
        .because(followed(&status));
    let name = format!("{}/{}", snapshot.job.namespace(), snapshot.job.name());
    Explanation { summary: format!("{name} {}", said.summary), ..said }
}

/// Explains a job that another controller reconciles.
fn is_left_alone(snapshot: &JobSnapshot, status: &RLTrainingJobStatus) -> Option<Explanation> {
    let managed_by = snapshot.prepared.as_ref().ok()?.job.spec().managed_by.clone()?;
    if managed_by == rlt_objects::queue::MULTIKUEUE {
        let has_status = !status.conditions.is_empty();
        return (!has_status).then(|| {
            Explanation::new(
                "waits for MultiKueue to run it in another cluster, which has reported nothing yet",
            )
            .so("see why its Workload waits: kubectl describe workloads.kueue.x-k8s.io")
        });
    }
    (managed_by != rlt_objects::labels::CONTROLLER).then(|| {
        Explanation::new(format!("is left alone: spec.managedBy names `{managed_by}`"))
            .so("ask that controller, or make the job anew without spec.managedBy")
    })
}

/// Returns why the present specification is refused, for a job that continues with its earlier one.
fn continues(status: &RLTrainingJobStatus) -> Option<String> {
    let refusals = [Reason::InvalidSpec, Reason::InvalidDefaults, Reason::PodNotAllowed].map(Reason::name);
    let mut conditions = status.conditions.iter();
    let stalled = conditions.find(|condition| condition.type_ == ConditionType::Stalled)?;
    let is_refused = stalled.status == ConditionStatus::False && refusals.contains(&stalled.reason);
    is_refused.then(|| stalled.message.clone())
}

/// Explains a job, or a change of one, that no operator has reconciled.
fn unseen(snapshot: &JobSnapshot, status: &RLTrainingJobStatus) -> Option<Explanation> {
    let is_seen = status.observed_generation.is_some_and(|seen| seen >= snapshot.job.generation());
    if is_seen {
        return None;
    }
    let created = snapshot.job.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let age = created.map(|created| duration(seconds_between(created, snapshot.now))).unwrap_or_default();
    if status.conditions.is_empty() && !snapshot.workers.is_empty() {
        let num_pods = snapshot.workers.len();
        return Some(
            Explanation::new(format!("is being started: the operator has made {num_pods} of its pods"))
                .because([
                    "the first status waits for workers to run; with many new jobs, up to 20 s".to_owned()
                ]),
        );
    }
    let what = if status.conditions.is_empty() {
        format!("waits for its first reconcile, {age} after it was created")
    } else {
        "has a change that no operator has reconciled".to_owned()
    };
    let explanation = Explanation::new(what)
        .so("see whether the operator runs: kubectl get pods -A -l app.kubernetes.io/name=rl-operator");
    Some(explanation.so("and whether it watches this namespace: its chart's value `namespaces`"))
}

fn ended(snapshot: &JobSnapshot, status: &RLTrainingJobStatus) -> Option<Explanation> {
    if status.is(ConditionType::Failed) {
        return Some(failed::failed(snapshot, status));
    }
    status.is(ConditionType::Complete).then(|| {
        let steps = status.progress.as_ref().map(|progress| format!("{} steps", progress.step));
        let reward =
            status.progress.as_ref().and_then(|progress| progress.held_out_reward.or(progress.reward));
        let is_without = reward == Some(0.0);
        let reward = reward.map(|reward| format!("reward {reward:.3}"));
        let explanation =
            Explanation::new("is complete: all workers ended well").because(steps.into_iter().chain(reward));
        let explanation = explanation.because(warning(status));
        let mut symptoms = symptoms(status);
        if symptoms.is_empty() && is_without {
            symptoms.push(SymptomKind::NoReward);
        }
        changed(explanation, &symptoms)
    })
}

/// Returns the warning of the trainer as a sentence.
fn warning(status: &RLTrainingJobStatus) -> Option<String> {
    Some(format!("the run {}", status.progress.as_ref()?.warning.as_ref()?))
}

/// Returns the symptoms of which the trainer warns.
fn symptoms(status: &RLTrainingJobStatus) -> Vec<SymptomKind> {
    let reasons = status.progress.iter().flat_map(|progress| &progress.warning_reasons);
    let names: Vec<&str> = reasons.map(String::as_str).collect();
    SymptomKind::ALL.into_iter().filter(|kind| names.contains(&kind.name())).collect()
}

/// Adds the changes that help against each symptom.
fn changed(explanation: Explanation, symptoms: &[SymptomKind]) -> Explanation {
    symptoms.iter().flat_map(|kind| kind.changes()).fold(explanation, |said, change| said.so(*change))
}

fn invalid(snapshot: &JobSnapshot, status: &RLTrainingJobStatus) -> Option<Explanation> {
    let stalled = when_true(status, ConditionType::Stalled)?;
    let held = if status.attempt.is_some() { "is held" } else { "does not start" };
    let because = |title: &str, correct: &str| {
        let title = format!("{held}: {title}");
        Some(Explanation::new(title).because([stalled.message.clone()]).so(correct))
    };
    if stalled.reason == Reason::InvalidDefaults.name() {
        let correct = "correct that ConfigMap; the job continues automatically";
        return because("the defaults of its namespace cannot be read", correct);
    }
    if stalled.reason == Reason::PodNotAllowed.name() {
        let correct = "do without these fields, or ask the administrator of the operator to allow them";
        return because("its pods may not have what it asks for", correct);
    }
    if stalled.reason != Reason::InvalidSpec.name() {
        return None;
    }
    let fields = match &snapshot.prepared {
        Err(Invalid::Problems(problems)) => problems.clone(),
        // The rules of this version accept a specification that the operator's version refuses.
        _ => vec![stalled.message.clone()],
    };
    let correct = "correct these fields; `rlctl validate FILE` checks a manifest before it is applied";
    Some(Explanation::new(format!("{held}: its specification breaks rules")).because(fields).so(correct))
}

fn suspended(snapshot: &JobSnapshot, status: &RLTrainingJobStatus) -> Option<Explanation> {
    let (name, namespace) = (snapshot.job.name(), snapshot.job.namespace());
    let condition = status.conditions.iter().find(|condition| condition.type_ == ConditionType::Suspended)?;
    let is_by_hand = condition.reason == Reason::Suspended.name();
    let kept = checkpoint(status).into_iter();
    match condition.status {
        ConditionStatus::True if is_by_hand => {
            let resume = format!(
                "resume it: kubectl patch rltj {name} -n {namespace} --type merge \
                 -p '{{\"spec\":{{\"runPolicy\":{{\"suspend\":false}}}}}}'"
            );
            Some(
                Explanation::new("is suspended: spec.runPolicy.suspend is true, and no worker is left")
                    .because(kept)
                    .so(resume),
            )
        }
        ConditionStatus::True => Some(queued(condition).because(kept)),
        _ if condition.reason == Reason::Suspending.name() => {
            let left = snapshot.workers.iter().filter(|worker| !worker.is_finished()).count();
            let grace = snapshot.prepared.as_ref().ok().map(|prepared| {
                let grace = prepared.job.spec().run_policy.termination_grace_period_seconds;
                format!("each has {grace} s for a checkpoint (spec.runPolicy.terminationGracePeriodSeconds)")
            });
            let still = format!("is being suspended: {left} workers save a checkpoint and stop");
            Some(Explanation::new(still).because(grace))
        }
        _ => None,
    }
}

/// Explains a job that waits for its queue, or for which Kueue is not installed.
fn queued(condition: &Condition) -> Explanation {
    let explanation = Explanation::new(condition.message.clone());
    if condition.reason == Reason::QueueMissing.name() {
        let label = rlt_objects::queue::QUEUE_LABEL;
        return explanation.so(format!("install Kueue, or remove the label {label} of the job"));
    }
    explanation
        .so("see what the queue admits first: kubectl get workloads,localqueues")
        .so("or ask for less: spec.workers.count, spec.workers.resources")
}

/// Explains a job in which nothing is wrong by its step, its last checkpoint and its earlier attempts.
fn running(snapshot: &JobSnapshot, status: &RLTrainingJobStatus) -> Explanation {
    let attempt = status.attempt.unwrap_or(1);
    let progress = status.progress.as_ref().filter(|progress| progress.step > 0);
    let summary = match progress {
        Some(progress) => {
            format!("trains: step {} of {}, attempt {attempt}", progress.step, progress.num_steps)
        }
        None => format!("runs, and has not reported a finished step of attempt {attempt} yet"),
    };
    let step_time = progress.and_then(|progress| progress.step_time.as_ref()?.parse().ok());
    let last_step = step_time.map(|time| {
        format!("the last step was finished {} ago", duration(seconds_between(time, snapshot.now)))
    });
    let rest = progress.and_then(|progress| progress.remaining_seconds);
    let rest = rest.map(|seconds| format!("the rest takes about {}", duration(seconds)));
    let warned = status.progress.as_ref().filter(|progress| progress.warning.is_some());
    let explanation = Explanation::new(summary)
        .because(warning(status))
        .because(last_step)
        .because(rest)
        .because(checkpoint(status))
        .because(earlier(snapshot, status));
    let unsaved = Reason::CheckpointNotSaved.name();
    let explanation = match warned.is_some_and(|progress| progress.warning_reasons.contains(&unsaved)) {
        true => explanation.so(
            "make room on the volume of the run, or mend it: after five failures in a row the attempt ends",
        ),
        false => explanation,
    };
    changed(explanation, &symptoms(status))
}

/// Names the trace of the attempt, if it has one.
fn followed(status: &RLTrainingJobStatus) -> Option<String> {
    let (attempt, trace) = (status.attempt?, status.trace_id.as_ref()?);
    Some(format!("attempt {attempt} is trace {trace}"))
}
