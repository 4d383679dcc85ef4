//! What to do about a job: a pure function of what was observed and of the time. No API server is spoken to
//! here.
//!
//! ```text
//! finished? -> has it succeeded? -> too long? -> to be suspended? -> to wait in a queue? -> an attempt over?
//!           -> start what is missing
//! ```
//! Whoever decides on a new attempt, or on the end, first writes that down: pods follow in the next round, so
//! that whatever crashes in between, no two attempts are ever alive at once.

mod apply_failure;
mod census;
mod clock;
mod conditions;
mod deadlines;
mod departure;
mod failure;
mod finished;
mod notes;
mod queue;
mod retries;
mod success;
mod suspension;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use rlt_api::status::{CheckpointStatus, Progress, RLTrainingJobStatus};
use rlt_api::{FailureCause, Reason};

use crate::labels;
use crate::nodes::NodeStates;
use crate::prepare::{Invalid, Prepared};
use crate::queue::{QueueAct, Queueing};
use crate::worker::Worker;
pub use apply_failure::ApplyFailure;
use census::Census;
pub use conditions::Situation;
pub use notes::Note;

/// Everything that a decision depends on.
#[derive(Clone, Debug)]
pub struct Facts<'a> {
    /// The specification, and what follows from it.
    pub prepared: &'a Prepared,
    /// The status as last written.
    pub status: &'a RLTrainingJobStatus,
    /// The generation of the specification.
    pub generation: i64,
    /// Whether somebody would apply the job anew after it was deleted.
    pub is_tracked: bool,
    /// The job's pods, of whatever attempt.
    pub workers: &'a [Arc<Worker>],
    /// The nodes that they are on, as far as they are known.
    pub nodes: &'a NodeStates,
    /// What the trainer reported last.
    pub report: Option<&'a Report>,
    /// What a queue says about the job.
    pub queueing: &'a Queueing,
    /// The time.
    pub now: Timestamp,
}

/// What the trainer reported last.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// The attempt that reports, from 1.
    pub attempt: u32,
    /// How far the training is.
    pub progress: Option<Progress>,
    /// All complete checkpoints, oldest first; `None` where they are not known.
    pub checkpoints: Option<Vec<CheckpointStatus>>,
}

/// What to do, in this order: delete, make, report.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Pods to delete.
    pub delete: Vec<Deletion>,
    /// What to tell the queue.
    pub queue: Option<QueueAct>,
    /// Whether the job's other objects have to be there.
    pub needs_children: bool,
    /// Indices of the workers to start.
    pub start: Vec<u32>,
    /// Whether the job itself is to be deleted.
    pub delete_job: bool,
    /// The status to report.
    pub status: RLTrainingJobStatus,
    /// What the job is doing.
    pub situation: Situation,
    /// Why it could not be applied, once that was tried.
    pub apply_failure: Option<ApplyFailure>,
    /// When to decide anew although nothing has happened.
    pub look_again: Option<Duration>,
}

/// A pod to delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deletion {
    /// Its name.
    pub name: Arc<str>,
    /// Its UID: another pod of that name is not meant.
    pub uid: Arc<str>,
    /// Seconds that it has; by default those of its own specification.
    pub grace_seconds: Option<u32>,
    /// Its node, where nobody is left to stop it: it is force-deleted once that is certain.
    pub lost_node: Option<Arc<str>>,
}

/// What to do about a job.
pub fn decide(facts: &Facts<'_>) -> Decision {
    let round = Round::begin(facts);
    let policy = &facts.prepared.job.spec().run_policy;
    if round.is_finished() {
        return finished::settle(round);
    }
    match success::judge(&round) {
        success::Verdict::Yes => return finished::complete(round),
        success::Verdict::Soon(wait) => return round.keep(wait),
        success::Verdict::No => {}
    }
    if round.is_past(policy.active_deadline_seconds) {
        let seconds = policy.active_deadline_seconds.unwrap_or_default();
        let message = format!("the job was active for more than {seconds} s");
        retries::answer(round, failure::Failure::of_job(FailureCause::DeadlineExceeded, message))
    } else if policy.suspend {
        suspension::suspend(round)
    } else if let Some(hold) = queue::hold(&round) {
        queue::wait(round, hold)
    } else if round.status.active_since.is_none() {
        suspension::begin(round)
    } else {
        match failure::find(&round) {
            failure::Verdict::Failed(failure) => retries::answer(round, failure),
            failure::Verdict::Unclear(wait) => round.keep(wait),
            failure::Verdict::Leaving { message, wait } => {
                round.decide(Situation::Leaving(message), Some(wait))
            }
            failure::Verdict::Well => run(round),
        }
    }
}

/// The decision about a job whose specification breaks a rule: nothing is started, nothing is stopped.
pub fn refuse(status: &RLTrainingJobStatus, generation: i64, invalid: &Invalid, now: Timestamp) -> Decision {
    let mut status = status.clone();
    status.observed_generation = Some(generation);
    let situation = Situation::Invalid(invalid.to_string());
    status.conditions = conditions::conditions(&situation, None, &status, now);
    Decision {
        delete: Vec::new(),
        queue: None,
        needs_children: false,
        start: Vec::new(),
        delete_job: false,
        status,
        situation,
        apply_failure: None,
        look_again: None,
    }
}

impl Decision {
    /// When to look again, at the latest after this time.
    pub fn sooner(&self, wait: Duration) -> Duration {
        self.look_again.map_or(wait, |own| own.min(wait))
    }

    /// What to tell people about the change from a status to this one.
    pub fn notes(&self, before: &RLTrainingJobStatus) -> Vec<Note> {
        notes::between(before, &self.status, &self.situation, self.apply_failure.as_ref())
    }
}

/// Removes the workers of earlier attempts and starts those that are missing.
fn run(mut round: Round<'_>) -> Decision {
    let grace = retries::survivors_grace(&round.status);
    round.delete = departure::deletions(&round, round.census.previous.iter().copied(), grace);
    if let Some(wait) = retries::wait_to_start(&round) {
        return round.decide(Situation::WaitingToRestart(wait), Some(wait));
    }
    if queue::may_create_pods(round.facts.queueing) {
        round.start = round.census.vacant();
    }
    let situation = round.census.situation(&round.status);
    if situation == Situation::Running && round.status.attempt_running_time.is_none() {
        round.status.attempt_running_time = Some(clock::rfc3339(round.facts.now));
    }
    let situation = departure::stuck(&round).or_else(|| deadlines::hindrance(&round)).unwrap_or(situation);
    let look_again = deadlines::next(&round);
    let mut decision = round.decide(situation, look_again);
    decision.needs_children = true;
    decision
}

/// One decision in the making.
struct Round<'a> {
    facts: &'a Facts<'a>,
    census: Census<'a>,
    status: RLTrainingJobStatus,
    delete: Vec<Deletion>,
    start: Vec<u32>,
}

impl<'a> Round<'a> {
    fn begin(facts: &'a Facts<'a>) -> Self {
        let mut status = facts.status.clone();
        status.observed_generation = Some(facts.generation);
        let attempt = status.attempt.unwrap_or(1);
        let census = Census::take(facts.workers, attempt, &facts.prepared.plan);
        status.selector = Some(labels::selector_of_workers(facts.prepared.job.name(), census.group()));
        Self { facts, census, status, delete: Vec::new(), start: Vec::new() }
    }

    fn is_finished(&self) -> bool {
        self.status.completion_time.is_some()
    }

    fn time(&self, text: Option<&str>) -> Option<Timestamp> {
        text.and_then(|text| text.parse().ok())
    }

    fn attempt(&self) -> u32 {
        self.status.attempt.unwrap_or(1)
    }

    /// Seconds that the job has been active.
    fn active_seconds(&self) -> u64 {
        let now = self.facts.now;
        let since = self.time(self.status.active_since.as_deref()).unwrap_or(now);
        self.status.active_seconds.unwrap_or(0) + clock::seconds_between(since, now)
    }

    fn is_past(&self, active_deadline_seconds: Option<u64>) -> bool {
        self.status.attempt.is_some()
            && active_deadline_seconds.is_some_and(|deadline| self.active_seconds() >= deadline)
    }

    /// Leaves everything as it is for a while.
    fn keep(self, wait: Duration) -> Decision {
        let situation = self.census.situation(&self.status);
        self.decide(situation, Some(wait))
    }

    /// Writes the status down; pods follow in the next round.
    fn write_first(self, situation: Situation) -> Decision {
        let mut decision = self.decide(situation, Some(Duration::ZERO));
        decision.delete.clear();
        decision
    }

    fn decide(mut self, situation: Situation, look_again: Option<Duration>) -> Decision {
        if !self.is_finished() || self.facts.status.completion_time.is_none() {
            self.census.count(self.start.len(), &mut self.status);
            self.take_report();
            self.status.resolved = Some(self.facts.prepared.resolved_numbers());
        }
        self.status.queue.clone_from(&self.facts.queueing.queue);
        self.status.conditions = conditions::conditions(&situation, None, &self.status, self.facts.now);
        Decision {
            queue: queue::act(&self, &situation),
            delete: self.delete,
            needs_children: false,
            start: self.start,
            delete_job: false,
            status: self.status,
            situation,
            apply_failure: None,
            look_again,
        }
    }

    /// A report of an earlier attempt says nothing about this one; its checkpoints are still there.
    fn take_report(&mut self) {
        let Some(report) = self.facts.report else { return };
        if let Some(checkpoints) = &report.checkpoints {
            self.status.checkpoints.clone_from(checkpoints);
        }
        if let Some(progress) = report.progress.as_ref().filter(|_| report.attempt == self.attempt()) {
            self.status.progress = Some(progress.clone());
        }
    }
}

/// The reason that stands behind the summary of a job that has ended.
fn cause_of(status: &RLTrainingJobStatus) -> Reason {
    status.last_failure.as_ref().map_or(Reason::StepsFinished, |failure| Reason::Failure(failure.cause))
}

#[cfg(test)]
pub(crate) mod fixtures;
#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
