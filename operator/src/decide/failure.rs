//! What ended an attempt, and what follows: another attempt, or the end.
//!
//! The first worker that fails names the cause: the others die of its absence. Attempts are counted by their cause, in
//! the status, so that an operator that has just started knows them too.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use rlt_api::status::{FailureStatus, RLTrainingJobStatus};
use rlt_api::{Budget, FailureCause};

use super::{Decision, Round, Situation, clock, finished};
use crate::worker::{Explanation, Waiting, Worker, WorkerPhase};

/// Longest message of a failure in a status, in bytes.
const MAX_MESSAGE_BYTES: usize = 4096;
/// How long the loss of a peer waits for the peer's own story.
const PEER_PATIENCE: Duration = Duration::from_secs(3);
/// An attempt that lives longer than this many seconds is not one that ends at its start.
const SHORT_ATTEMPT_SECONDS: u64 = 60;
/// Seconds that the next attempt waits after the second short one in a row; twice as many after each further one.
const FIRST_DELAY_SECONDS: u64 = 5;
/// The longest such wait, in seconds.
const MAX_DELAY_SECONDS: u64 = 300;

/// What can be said about an attempt.
pub(super) enum Verdict {
    /// Nothing speaks against it.
    Well,
    /// It is over, but the worker that knows why may not have been heard yet.
    Unclear(Duration),
    /// It is over.
    Failed(Failure),
}

/// What ended an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    cause: FailureCause,
    message: String,
    pod: Option<String>,
    node: Option<String>,
    exit_code: Option<i32>,
}

impl Failure {
    /// A failure that no single worker is to blame for.
    pub(super) fn of_job(cause: FailureCause, message: String) -> Self {
        Self { cause, message, pod: None, node: None, exit_code: None }
    }

    fn of_worker(cause: FailureCause, message: String, worker: &Worker) -> Self {
        Self {
            cause,
            message,
            pod: Some(worker.name.to_string()),
            node: worker.node.as_deref().map(str::to_owned),
            exit_code: worker.exit.as_ref().map(|exit| exit.code),
        }
    }
}

/// Looks for the failure that ended the attempt.
pub(super) fn find(round: &Round<'_>) -> Verdict {
    let mut failed: Vec<_> =
        round.census.present().filter(|worker| worker.phase == WorkerPhase::Failed).collect();
    failed.sort_by_key(|worker| finished_at(worker).unwrap_or(Timestamp::MAX));
    let failures: Vec<_> = failed.iter().map(|worker| classify(worker)).collect();
    let knows_more = |failure: &&Failure| failure.cause != FailureCause::PeerLost;
    if let Some(failure) = failures.iter().find(knows_more) {
        return Verdict::Failed(failure.clone());
    }
    if let Some(failure) = missing(round) {
        return Verdict::Failed(failure);
    }
    if let (Some(failure), Some(first)) = (failures.first(), failed.first()) {
        return match clock::until(finished_at(first).map(|at| at + PEER_PATIENCE), round.facts.now) {
            Some(wait) if failed.len() < round.census.current.len() => Verdict::Unclear(wait),
            _ => Verdict::Failed(failure.clone()),
        };
    }
    overdue(round).map_or(Verdict::Well, Verdict::Failed)
}

fn finished_at(worker: &Worker) -> Option<Timestamp> {
    worker.exit.as_ref().and_then(|exit| exit.finished_at)
}

/// What ended a worker that has failed.
fn classify(worker: &Worker) -> Failure {
    let failure = |cause, message| Failure::of_worker(cause, message, worker);
    if let Some(disruption) = &worker.disruption {
        return failure(disrupted(disruption), in_words(disruption));
    }
    if let Some(exit) = &worker.exit {
        let is_memory = exit.reason == "OOMKilled";
        let cause =
            if is_memory { Some(FailureCause::OutOfMemory) } else { FailureCause::from_exit_code(exit.code) };
        let said = if exit.message.is_empty() { &exit.reason } else { &exit.message };
        let message = format!("exit code {}: {}", exit.code, said.trim());
        return failure(cause.unwrap_or(FailureCause::TrainerFailed), message);
    }
    match &worker.explanation {
        // Its own disk use, where the node as a whole was not short.
        Some(explanation) if explanation.reason == "Evicted" => {
            failure(FailureCause::RetryableIo, in_words(explanation))
        }
        Some(explanation) => failure(FailureCause::Disrupted, in_words(explanation)),
        None => failure(FailureCause::Disrupted, "the pod failed without an exit code".into()),
    }
}

fn disrupted(disruption: &Explanation) -> FailureCause {
    match disruption.reason.as_str() {
        "DeletionByTaintManager" | "DeletionByPodGC" => FailureCause::NodeLost,
        _ => FailureCause::Disrupted,
    }
}

fn in_words(explanation: &Explanation) -> String {
    let Explanation { reason, message } = explanation;
    if message.is_empty() { reason.clone() } else { format!("{reason}: {message}") }
}

/// A worker of a gang that ran, and that somebody else deleted. While a gang starts, its place is filled again instead.
fn missing(round: &Round<'_>) -> Option<Failure> {
    round.status.attempt_running_time.as_ref()?;
    let is_leaving = |worker: &&Worker| worker.is_deleting && worker.phase != WorkerPhase::Succeeded;
    if let Some(worker) = round.census.present().find(is_leaving) {
        let (cause, message) = match &worker.disruption {
            Some(disruption) => (disrupted(disruption), in_words(disruption)),
            None => (FailureCause::Disrupted, "the pod was deleted".into()),
        };
        return Some(Failure::of_worker(cause, message, worker));
    }
    let idx = round.census.current.iter().position(Option::is_none)?;
    let name = round.facts.prepared.plan.worker_groups.first()?.worker_name(idx as u32);
    let failure = Failure::of_job(FailureCause::Disrupted, "the pod was deleted".into());
    Some(Failure { pod: Some(name), ..failure })
}

/// Seconds until the workers must all run; `None` without such a limit, or once they did.
pub(super) fn startup_seconds_left(round: &Round<'_>) -> Option<u64> {
    let limit = round.facts.prepared.job.spec().run_policy.startup_deadline_seconds?;
    let is_starting = round.status.attempt_running_time.is_none();
    let since = round.time(round.status.attempt_start_time.as_deref()).filter(|_| is_starting)?;
    Some(limit.saturating_sub(clock::seconds_between(since, round.facts.now)))
}

/// Seconds until the next step must be finished; `None` without such a limit, or when nobody reports.
pub(super) fn stall_seconds_left(round: &Round<'_>) -> Option<u64> {
    let limit = round.facts.prepared.job.spec().run_policy.stall_deadline_seconds?;
    let ran_at = round.time(round.status.attempt_running_time.as_deref())?;
    let report = round.facts.report.filter(|report| report.attempt == round.attempt())?;
    let step_at = round.time(report.progress.as_ref()?.step_time.as_deref()).unwrap_or(ran_at);
    Some(limit.saturating_sub(clock::seconds_between(step_at.max(ran_at), round.facts.now)))
}

fn overdue(round: &Round<'_>) -> Option<Failure> {
    let policy = &round.facts.prepared.job.spec().run_policy;
    if startup_seconds_left(round) == Some(0) {
        let seconds = policy.startup_deadline_seconds.unwrap_or_default();
        return Some(late_start(round, seconds));
    }
    if stall_seconds_left(round) == Some(0) {
        let seconds = policy.stall_deadline_seconds.unwrap_or_default();
        let message = format!("no step was finished for {seconds} s");
        return Some(Failure::of_job(FailureCause::NoProgress, message));
    }
    None
}

/// The worker that is furthest from running says what it waits for.
fn late_start(round: &Round<'_>, seconds: u64) -> Failure {
    let late = |why: &str| format!("not all workers ran within {seconds} s: {why}");
    for worker in round.census.present() {
        match &worker.waiting {
            Some(Waiting::Unschedulable(why)) => {
                return Failure::of_worker(FailureCause::NotScheduled, late(why), worker);
            }
            Some(Waiting::Container(why)) => {
                return Failure::of_worker(FailureCause::StartFailed, late(&in_words(why)), worker);
            }
            None => {}
        }
    }
    Failure::of_job(FailureCause::StartFailed, late("some have not started"))
}

/// Another attempt where the cause has one left, else the end.
pub(super) fn answer(mut round: Round<'_>, failure: Failure) -> Decision {
    record(&mut round, &failure);
    match used_up(&round, failure.cause) {
        Some(why) => {
            if let Some(last) = &mut round.status.last_failure {
                last.message = shortened(&format!("{} ({why})", last.message));
            }
            finished::fail(round, Situation::Failed(failure.cause))
        }
        None => {
            begin_next(&mut round);
            round.write_first(Situation::Restarting)
        }
    }
}

fn record(round: &mut Round<'_>, failure: &Failure) {
    let attempt = round.attempt();
    *round.status.failures_by_cause.entry(failure.cause).or_default() += 1;
    round.status.last_failure = Some(FailureStatus {
        attempt,
        cause: failure.cause,
        pod: failure.pod.clone(),
        node: failure.node.clone(),
        exit_code: failure.exit_code,
        message: shortened(&failure.message),
        advice: failure.cause.advice().into(),
        time: clock::rfc3339(round.facts.now),
    });
}

fn shortened(message: &str) -> String {
    message[..message.floor_char_boundary(MAX_MESSAGE_BYTES)].to_owned()
}

/// Why the cause may not be tried again; `None` where it may. The failure itself is counted already.
fn used_up(round: &Round<'_>, cause: FailureCause) -> Option<String> {
    let retries = &round.facts.prepared.job.spec().run_policy.retries;
    match cause.budget(retries) {
        Budget::Unlimited => None,
        Budget::Never => Some("not tried again, because it would end in the same way".into()),
        Budget::Limited { field, limit } => {
            let same = |other: &FailureCause| matches!(other.budget(retries), Budget::Limited { field: other, .. } if other == field);
            let counts = round.status.failures_by_cause.iter();
            let count: u32 = counts.filter(|(other, _)| same(other)).map(|(_, count)| count).sum();
            (count > limit).then(|| format!("spec.runPolicy.retries.{field} of {limit} used up"))
        }
    }
}

fn begin_next(round: &mut Round<'_>) {
    let now = round.facts.now;
    let lived = round.time(round.status.attempt_start_time.as_deref()).unwrap_or(now);
    let is_short = clock::seconds_between(lived, now) < SHORT_ATTEMPT_SECONDS;
    round.status.short_attempts =
        is_short.then(|| round.status.short_attempts.unwrap_or(0).saturating_add(1));
    let delay = Duration::from_secs(delay_seconds(&round.status));
    round.status.attempt = Some(round.attempt() + 1);
    round.status.attempt_start_time = Some(clock::rfc3339(now + delay));
    round.status.attempt_running_time = None;
}

fn delay_seconds(status: &RLTrainingJobStatus) -> u64 {
    match status.short_attempts.unwrap_or(0) {
        0 | 1 => 0,
        many => (FIRST_DELAY_SECONDS << (many - 2).min(16)).min(MAX_DELAY_SECONDS),
    }
}
