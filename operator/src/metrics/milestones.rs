//! Metrics from the difference between two statuses: milestones of an attempt, ends of attempts and jobs.

use std::time::Duration;

use jiff::Timestamp;
use rlt_api::status::{ConditionType, RLTrainingJobStatus};
use rlt_plan::SPARE_GROUP;

use super::{Metrics, Milestone};

impl Metrics {
    /// Updates the metrics after the status changed from `before` to `after` at the time `now`.
    pub fn status_written(&self, before: &RLTrainingJobStatus, after: &RLTrainingJobStatus, now: Timestamp) {
        for (milestone, time) in milestones(before, after, now) {
            self.reached(milestone, time);
        }
        for (cause, count) in &after.failures_by_cause {
            for _ in before.failures_by_cause.get(cause).copied().unwrap_or(0)..*count {
                self.attempt_ended(&format!("{cause:?}"));
            }
        }
        for (type_, outcome) in [(ConditionType::Complete, "complete"), (ConditionType::Failed, "failed")] {
            if after.is(type_) && !before.is(type_) {
                self.job_ended(outcome);
            }
        }
    }
}

/// Returns the milestones that the attempt reached between the statuses, with the time since its start.
fn milestones(
    before: &RLTrainingJobStatus,
    after: &RLTrainingJobStatus,
    now: Timestamp,
) -> Vec<(Milestone, Duration)> {
    let Some(start) = time(after.attempt_start_time.as_deref()) else { return Vec::new() };
    let is_same = before.attempt == after.attempt;
    let since_start = |at: Timestamp| Duration::try_from(at.duration_since(start)).unwrap_or_default();
    let mut reached = Vec::new();
    if has_all_pods(after) && !(is_same && has_all_pods(before)) {
        reached.push((Milestone::Pods, since_start(now)));
    }
    let running = |status: &RLTrainingJobStatus| time(status.attempt_running_time.as_deref());
    if let Some(at) = running(after).filter(|_| !(is_same && running(before).is_some())) {
        reached.push((Milestone::Running, since_start(at)));
    }
    let stepped = |status: &RLTrainingJobStatus| {
        let step_time = status.progress.as_ref().and_then(|progress| time(progress.step_time.as_deref()));
        step_time.filter(|at| *at >= start)
    };
    if let Some(at) = stepped(after).filter(|_| stepped(before).is_none()) {
        reached.push((Milestone::FirstStep, since_start(at)));
    }
    reached
}

fn has_all_pods(status: &RLTrainingJobStatus) -> bool {
    let groups = &status.worker_groups;
    !groups.is_empty()
        && groups.iter().filter(|group| group.name != SPARE_GROUP).all(|group| {
            group.desired > 0
                && group.pending + group.running + group.succeeded + group.failed >= group.desired
        })
}

fn time(text: Option<&str>) -> Option<Timestamp> {
    text?.parse().ok()
}

#[cfg(test)]
mod tests {
    use rlt_api::status::{Progress, WorkerGroupStatus};

    use super::*;

    fn status(pending: u32, running_time: Option<&str>, step_time: Option<&str>) -> RLTrainingJobStatus {
        let progress = step_time.map(|time| Progress { step_time: Some(time.into()), ..Progress::default() });
        RLTrainingJobStatus {
            attempt: Some(2),
            attempt_start_time: Some("2026-01-01T00:00:00Z".into()),
            attempt_running_time: running_time.map(Into::into),
            worker_groups: vec![WorkerGroupStatus { desired: 8, pending, ..WorkerGroupStatus::default() }],
            progress,
            ..RLTrainingJobStatus::default()
        }
    }

    #[test]
    fn each_milestone_of_an_attempt_is_reached_once() {
        let now: Timestamp = "2026-01-01T00:00:01Z".parse().unwrap();
        let (running, step) = (Some("2026-01-01T00:00:05Z"), Some("2026-01-01T00:00:30Z"));
        let old_step = Some("2025-12-31T23:59:00Z");
        let life = [
            status(3, None, old_step),
            status(8, None, old_step),
            status(8, running, old_step),
            status(8, running, step),
            status(8, running, Some("2026-01-01T00:01:00Z")),
        ];
        let all: Vec<_> = life.windows(2).flat_map(|pair| milestones(&pair[0], &pair[1], now)).collect();
        let expected = [(Milestone::Pods, 1), (Milestone::Running, 5), (Milestone::FirstStep, 30)];
        assert_eq!(all, expected.map(|(milestone, seconds)| (milestone, Duration::from_secs(seconds))));
    }
}
