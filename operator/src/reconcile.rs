//! One reconcile of one job: observe, decide, apply, write the status.

mod follow;
mod specification;

use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::jiff::Timestamp;
use kube::Resource as _;
use kube::runtime::controller::Action;
use kube::runtime::events::{Event, EventType, Recorder};
use rlt_api::status::RLTrainingJobStatus;
use rlt_objects::build::{self, BuildInput};
use rlt_objects::job::Job;
use rlt_objects::labels;
use rlt_objects::prepare::{Invalid, Prepared};
use rlt_objects::queue::{self, WorkloadAction};
use tracing::Instrument as _;

use crate::apply::{self, Access, ApplyError, ClusterState, StatusWritten};
use crate::context::Context;
use crate::decide::{self, Decision, JobEvent, ReconcileInput, RefusedJob};
use crate::nodes::NodeLabels;
use crate::observe::{self, Observed};
use specification::JobSpecification;

/// Requeue delay after the API server refused an object of a job (quota, permissions, admission). A user has
/// to change something first, so retries are slow.
const REFUSED_RETRY: Duration = Duration::from_secs(30);
/// Longest note of an Event, in bytes.
const MAX_NOTE_BYTES: usize = 1024;

/// Observes, validates, plans, decides, applies, reports.
///
/// # Errors
/// The error of a failed call that may succeed later; the job is requeued.
pub async fn reconcile(job: Arc<Job>, context: Arc<Context>) -> Result<Action, ApplyError> {
    let started = Instant::now();
    if let Some(waited) = context.index.since_change(&job.key()) {
        context.metrics.queued(waited);
    }
    let reconciled = reconcile_traced(job, &context).await;
    let outcome = if reconciled.is_ok() { "done" } else { "failed" };
    context.metrics.reconciled(outcome, started.elapsed());
    reconciled
}

async fn reconcile_traced(job: Arc<Job>, context: &Context) -> Result<Action, ApplyError> {
    if queue::asked_for(&job).is_some() && !context.discovery.served().has_workloads && context.is_leader() {
        context.discovery.refresh(&context.client).await;
    }
    let Some(observed) = observe::observe(context, &job) else { return Ok(Action::await_change()) };
    let span = follow::reconcile_span(&job, &observed.current.status);
    // Boxed, because the future would otherwise be stored again in the future of each of its callers.
    let reconciled = Box::pin(reconcile_observed(&job, context, observed)).instrument(span.clone()).await;
    reconciled.inspect_err(|error| follow::note_error(&span, error))
}

async fn reconcile_observed(
    job: &Job,
    context: &Context,
    mut observed: Observed,
) -> Result<Action, ApplyError> {
    let nodes_read = read_uncached_nodes(context, &mut observed).await;
    let (decision, applied) = match Box::pin(specification::of(context, job, &observed)).await? {
        // The controller that manages the job may have other defaults and allow more.
        JobSpecification::Refused(_) if !job.is_managed_here() => return Ok(Action::await_change()),
        JobSpecification::Refused(invalid) => Box::pin(refuse(context, job, &observed, &invalid)).await,
        JobSpecification::Accepted { prepared, refused } => match controller_of(&prepared) {
            Controller::Operator => {
                let (decision, applied) =
                    decide_and_apply(job, context, &mut observed, &prepared, nodes_read).await;
                let decision = match &refused {
                    Some(refused) => {
                        let privileges = &context.settings.pods.privileges;
                        decision.despite(refused, privileges.close_channel_to(&prepared.job.spec().workers))
                    }
                    None => decision,
                };
                (decision, applied)
            }
            Controller::MultiKueue => return dispatch(context, job, observed, &prepared).await,
            Controller::Other => return Ok(Action::await_change()),
        },
    };
    if let Some(stop) = applied.as_ref().err().filter(|error| error.is_stop()) {
        tracing::debug!(job = job.name(), %stop, "reconcile stopped: the next leader does it");
        return applied.map(|()| Action::await_change());
    }
    if applied.as_ref().is_err_and(ApplyError::is_outdated) {
        return applied.map(|()| Action::await_change());
    }
    let wait = report(context, job, &observed, &decision).await?;
    requeue(context, job, &decision, applied, wait)
}

/// Refuses a job. While the job has no pod, its quota is given back.
async fn refuse(
    context: &Context,
    job: &Job,
    observed: &Observed,
    invalid: &Invalid,
) -> (Decision, Result<(), ApplyError>) {
    let now = Timestamp::now();
    let refused = RefusedJob {
        status: &observed.current.status,
        generation: job.generation(),
        is_suspended: job.is_suspended(),
        has_pods: !observed.workers.is_empty(),
    };
    let mut decision = decide::refuse(&refused, invalid, now);
    let queueing = observed.workers.is_empty().then_some(&observed.queueing);
    let Some(change) = queueing.and_then(decide::unused_place) else { return (decision, Ok(())) };
    decision.queue = Some(WorkloadAction::GiveBack(change.clone()));
    let Context { client, limiter, index, .. } = context;
    let applied = match confirm(context, job, observed, &decision).await {
        Ok(()) => Box::pin(apply::give_place_back(Access { client, limiter, index }, job, &change)).await,
        Err(error) => Err(error),
    };
    (decision, applied)
}

/// Decides about a job and applies the decision, except for the status, which the caller writes.
async fn decide_and_apply(
    job: &Job,
    context: &Context,
    observed: &mut Observed,
    prepared: &Prepared,
    nodes_read: Result<(), ApplyError>,
) -> (Decision, Result<(), ApplyError>) {
    let now = Timestamp::now();
    let input = BuildInput { job, prepared, settings: &context.settings };
    let queue = observed.queueing.queue.as_deref();
    let excluded_nodes = &observed.current.status.excluded_nodes;
    let wanted = queue.map(|queue| build::workload_digest(&input, queue, excluded_nodes));
    observed.queueing.wanted = wanted;
    let deleting_claim = deleting_claim(&input, observed);
    let deleting_claim = deleting_claim.as_deref();
    let input_without_labels =
        ReconcileInput { deleting_claim, ..reconcile_input(job, observed, prepared, now) };
    let node_labels = read_node_labels(context, &input_without_labels).await;
    let node_labels = node_labels.as_ref();
    let mut decision = decide::decide(&ReconcileInput { node_labels, ..input_without_labels });
    follow::note(&decision);
    let sends_traces = !context.settings.traces.is_empty();
    follow::name_trace(job, sends_traces, &observed.current.status, &mut decision.status);
    // Launchers end only once the end of the job is in its status: the write of the status may conflict with
    // an edit that allows another attempt.
    if observed.current.status.completion_time.is_some() {
        context.reports.end_launchers(&job.key());
    }
    let applied = match confirm(context, job, observed, &decision).await {
        Ok(()) => apply_decision(context, &input, observed, &decision).await,
        Err(error) => Err(error),
    };
    let applied = ApplyError::first_of([applied, nodes_read]);
    let decision = with_failure(context, job, decision, &applied, now);
    (decision.noting_request(&observed.queueing), applied)
}

/// Confirms that a decision is based on the newest version of the job, before pods or the Workload are
/// changed.
async fn confirm(
    context: &Context,
    job: &Job,
    observed: &Observed,
    decision: &Decision,
) -> Result<(), ApplyError> {
    if !decision.changes_objects() {
        return Ok(());
    }
    Box::pin(apply::confirm(&context.client, &context.written, job, &observed.current)).await
}

/// Reads nodes that are not in the cache, before their pods are taken for lost. A node that cannot be read
/// stays unknown.
async fn read_uncached_nodes(context: &Context, observed: &mut Observed) -> Result<(), ApplyError> {
    let uncached = context.index.nodes.uncached(&observed.workers);
    if !uncached.is_empty() {
        let states =
            Box::pin(apply::read_nodes(&context.client, &context.index.nodes.signals, uncached)).await?;
        observed.nodes.extend(states);
    }
    Ok(())
}

/// Returns the name of the claim that the pods of a job mount, if that claim is being deleted. A claim that
/// the user names is not watched.
fn deleting_claim(input: &BuildInput<'_>, observed: &Observed) -> Option<String> {
    let claim = observed.claim_is_deleting.then(|| build::storage_claim(input)).flatten();
    claim?.metadata.name
}

/// Reads the topology labels of an attempt's nodes, once. A failure is only logged, because the job does not
/// depend on the topology in its status.
async fn read_node_labels(context: &Context, input: &ReconcileInput<'_>) -> Option<NodeLabels> {
    let nodes = decide::nodes_to_read(input);
    if nodes.is_empty() {
        return None;
    }
    let wanted = decide::topology_labels(input.prepared);
    let read = Box::pin(apply::read_node_labels(&context.client, nodes, &wanted)).await;
    read.inspect_err(|error| tracing::debug!(%error, "the topology of an attempt is not known")).ok()
}

/// Returns the decision with the apply error in its status, if the error is to be reported.
fn with_failure(
    context: &Context,
    job: &Job,
    decision: Decision,
    applied: &Result<(), ApplyError>,
    now: Timestamp,
) -> Decision {
    let Err(error) = applied else { return decision };
    let decision = Decision { delete_job: false, ..decision };
    match error.failure(context.failures.count(job.uid()) + 1) {
        Some(failure) => decision.failed(failure, now),
        None => decision,
    }
}

/// Returns the time of the next reconcile. A transient error is returned instead, so that it is retried with
/// backoff.
fn requeue(
    context: &Context,
    job: &Job,
    decision: &Decision,
    applied: Result<(), ApplyError>,
    wait: Option<Duration>,
) -> Result<Action, ApplyError> {
    let needs_action = decision.apply_failure.as_ref().is_some_and(|failure| failure.needs_action);
    match applied {
        Err(error) if !needs_action => return Err(error),
        Err(error) => {
            tracing::warn!(namespace = job.namespace(), job = job.name(), %error, "failed to apply job");
        }
        Ok(()) => {}
    }
    context.failures.forget(job.uid());
    let retry = needs_action.then_some(REFUSED_RETRY);
    let wait = [wait, retry].into_iter().flatten().min();
    Ok(wait.map_or_else(Action::await_change, Action::requeue))
}

/// The controller that reconciles a job.
enum Controller {
    /// This operator, which reconciles jobs that name it or no controller.
    Operator,
    /// MultiKueue, which runs the job in another cluster.
    MultiKueue,
    /// A controller that this operator does not know.
    Other,
}

fn controller_of(prepared: &Prepared) -> Controller {
    match prepared.job.spec().managed_by.as_deref() {
        None | Some(labels::CONTROLLER) => Controller::Operator,
        Some(queue::MULTIKUEUE) => Controller::MultiKueue,
        Some(_) => Controller::Other,
    }
}

/// Updates the Workload of a job that MultiKueue runs in another cluster, and deletes the job after its time
/// to live. MultiKueue writes the status of the job.
async fn dispatch(
    context: &Context,
    job: &Job,
    mut observed: Observed,
    prepared: &Prepared,
) -> Result<Action, ApplyError> {
    let input = BuildInput { job, prepared, settings: &context.settings };
    let queue = observed.queueing.queue.as_deref();
    observed.queueing.wanted = queue.map(|queue| build::workload_digest(&input, queue, &[]));
    let is_suspended = prepared.job.spec().run_policy.suspend;
    let status = &observed.current.status;
    if let Some(action) = decide::dispatch(&observed.queueing, status, is_suspended) {
        let Context { client, limiter, index, .. } = context;
        let access = Access { client, limiter, index };
        Box::pin(apply::change_workload(access, &input, &observed.queueing, &action)).await?;
    }
    let policy = &prepared.job.spec().run_policy;
    let left = decide::time_to_live(&observed.queueing, status, policy, job.is_tracked(), Timestamp::now());
    if left.is_some_and(|left| left.is_zero()) {
        let version = &observed.current.resource_version;
        Box::pin(apply::delete_unchanged(&context.client, job, version)).await?;
    }
    context.failures.forget(job.uid());
    let waits_for_kueue = observed.queueing.queue.is_some() && !observed.queueing.is_served;
    let waits = [waits_for_kueue.then_some(REFUSED_RETRY), left.filter(|left| !left.is_zero())];
    Ok(waits.into_iter().flatten().min().map_or_else(Action::await_change, Action::requeue))
}

fn reconcile_input<'a>(
    job: &Job,
    observed: &'a Observed,
    prepared: &'a Prepared,
    now: Timestamp,
) -> ReconcileInput<'a> {
    ReconcileInput {
        prepared,
        status: &observed.current.status,
        generation: job.generation(),
        is_tracked: job.is_tracked(),
        is_copy: queue::is_copy(job),
        workers: &observed.workers,
        nodes: &observed.nodes,
        node_labels: None,
        report: observed.report.as_ref(),
        launchers_due: observed.launchers_due,
        deleting_claim: None,
        queueing: &observed.queueing,
        now,
    }
}

async fn apply_decision(
    context: &Context,
    input: &BuildInput<'_>,
    observed: &Observed,
    decision: &Decision,
) -> Result<(), ApplyError> {
    let begins_gang = decision.start.len() > 1;
    if begins_gang {
        context.discovery.refresh(&context.client).await;
    }
    let cluster = ClusterState { served: context.discovery.served(), queueing: &observed.queueing };
    let Context { client, limiter, index, .. } = context;
    let access = Access { client, limiter, index };
    apply::apply(access, input, &cluster, decision).await?;
    if decision.delete_job {
        let version = &observed.current.resource_version;
        return Box::pin(apply::delete_unchanged(client, input.job, version)).await;
    }
    Ok(())
}

/// Writes the status, then publishes Events. Returns the maximum time until the next reconcile.
async fn report(
    context: &Context,
    job: &Job,
    observed: &Observed,
    decision: &Decision,
) -> Result<Option<Duration>, ApplyError> {
    if decision.delete_job {
        return Ok(None);
    }
    let before = &observed.current;
    let written =
        apply::write_status(&context.client, &context.written, job, before, &decision.status).await?;
    Ok(match written {
        StatusWritten::Yes => {
            context.metrics.status_written(&before.status, &decision.status, Timestamp::now());
            follow::end_attempt(job, &before.status, &decision.status);
            publish(context, job, before.published(job), decision);
            decision.requeue_after
        }
        StatusWritten::NothingNew => decision.requeue_after,
        StatusWritten::Later(wait) => Some(decision.sooner(wait)),
        StatusWritten::Deferred(wait) => {
            context.metrics.status_written(&before.status, &decision.status, Timestamp::now());
            Some(decision.sooner(wait))
        }
    })
}

/// Publishes Events in the background. A lost Event does no harm: the status has the same information. An
/// operator that is asked to stop waits for its Events before it ends.
///
/// Each Event has a recorder of its own. A recorder counts an Event of the same reason within six minutes as
/// a repetition and keeps the message of the first one, which would hide the message of another failure.
fn publish(context: &Context, job: &Job, before: &RLTrainingJobStatus, decision: &Decision) {
    for job_event in decision.events(before) {
        let recorder = Recorder::new(context.client.clone(), context.reporter.clone());
        let (event, about) = (event(&job_event), job.object_ref(&()));
        context.events.spawn(async move {
            if let Err(error) = recorder.publish(&event, &about).await {
                tracing::warn!(job = about.name, %error, "failed to publish event");
            }
        });
    }
}

fn event(job_event: &JobEvent) -> Event {
    let end = job_event.message.floor_char_boundary(MAX_NOTE_BYTES);
    Event {
        type_: if job_event.is_warning { EventType::Warning } else { EventType::Normal },
        reason: job_event.reason.name(),
        note: Some(job_event.message[..end].to_owned()),
        action: "Reconcile".into(),
        secondary: None,
    }
}

/// Requeues a job that could not be reconciled, after a wait that grows with each consecutive failure.
pub fn retry(job: Arc<Job>, error: &ApplyError, context: Arc<Context>) -> Action {
    if error.is_stop() {
        return Action::await_change();
    }
    let wait = context.failures.next_wait(job.uid(), error);
    let cause = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
    let (namespace, name) = (job.namespace(), job.name());
    tracing::warn!(namespace, job = name, %error, cause, ?wait, "failed to reconcile job");
    Action::requeue(wait)
}

#[cfg(test)]
mod tests;
