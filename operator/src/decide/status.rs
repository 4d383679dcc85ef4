//! The end of a reconcile: the status to write, and the decision with it.

pub(super) mod conditions;
pub(super) mod events;

use std::time::Duration;

use rlt_api::Warning;
use rlt_api::status::Progress;

use super::{Decision, JobState, Reconcile, queue, restarts, topology};

impl<'a> Reconcile<'a> {
    /// Changes nothing, and reconciles again after `wait`.
    pub(super) fn keep(self, wait: Duration) -> Decision {
        let state = self.pods.state(&self.status);
        self.decide(state, Some(wait))
    }

    /// Writes the status only; pods follow in the next reconcile.
    pub(super) fn write_first(self, state: JobState) -> Decision {
        let mut decision = self.decide(state, Some(Duration::ZERO));
        decision.delete.clear();
        decision.assign.clear();
        decision
    }

    pub(super) fn decide(mut self, state: JobState, requeue_after: Option<Duration>) -> Decision {
        if !self.is_finished() || self.input.status.completion_time.is_none() {
            let topologies = topology::topologies(&self);
            self.pods.count(&self.start, &mut self.status);
            for (group, topology) in self.status.worker_groups.iter_mut().zip(topologies) {
                group.topology = topology;
            }
            self.take_report();
            self.status.resolved = Some(self.input.prepared.resolved_numbers());
        } else if self.status.progress.is_none() && self.reported_progress().is_some() {
            // Workers that find a finished run may end before their only report is received. Once it is in
            // the status, nothing that is reported later changes the end.
            self.take_progress();
        }
        self.status.queue.clone_from(&self.input.queueing.queue);
        conditions::write(&mut self.status, &state, None, self.input.now);
        let warnings = self.warnings_of_first_attempt();
        Decision {
            queue: queue::action(&self, &state),
            delete: self.delete,
            needs_children: false,
            assign: self.assign,
            start: self.start,
            delete_job: false,
            warnings,
            status: self.status,
            state,
            apply_failure: None,
            requeue_after,
        }
    }

    /// Returns the warnings of the specification during the first attempt, else none. The first status may be
    /// deferred; a later decision then publishes them.
    fn warnings_of_first_attempt(&self) -> Vec<Warning> {
        match self.status.attempt {
            Some(1) => self.input.prepared.job.warnings(),
            _ => Vec::new(),
        }
    }

    /// Takes progress, checkpoints and restarts from the trainer's report. From the report of an earlier
    /// attempt only checkpoints and commits are taken, which are still valid.
    pub(super) fn take_report(&mut self) {
        self.take_progress();
        restarts::count(self);
    }

    fn take_progress(&mut self) {
        let Some(report) = self.input.report else { return };
        if let Some(checkpoints) = report.checkpoints_with(&self.status.checkpoints) {
            self.status.checkpoints = checkpoints;
        }
        if !report.commits.is_empty() {
            self.status.commits.clone_from(&report.commits);
        }
        if let Some(progress) = self.reported_progress() {
            self.status.progress = Some(progress.clone());
        }
    }

    /// Returns the progress of this attempt; `None` before its first report.
    fn reported_progress(&self) -> Option<&'a Progress> {
        let report = self.input.report.filter(|report| report.attempt == self.attempt())?;
        report.progress.as_ref()
    }
}
