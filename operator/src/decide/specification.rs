//! Choice of the specification that a job runs under. The present one may be refused, or may train something
//! else than the one that the job began with.

use k8s_openapi::jiff::Timestamp;
use rlt_api::Reason;
use rlt_api::status::{AcceptedStatus, ConditionType, RLTrainingJobStatus};
use rlt_objects::prepare::Invalid;

use super::{Decision, JobState, conditions};

/// Note for a job on the network of its nodes, whose pods the chart's NetworkPolicy keeps from the status
/// channel.
const CHANNEL_IS_CLOSED: &str = "its pods have the addresses of their nodes, which the chart's NetworkPolicy admits no \
                                 longer: where policies are enforced, its reports do not arrive and new attempts of \
                                 several pods do not start, unless networkPolicy.admitNodes is set; ";

/// The specification that a job runs under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Specification {
    /// The present specification of the job.
    Present,
    /// The specification that the job began with. If that cannot be read, the present one is used if it is
    /// valid.
    BeganWith,
    /// No specification: the present one is refused, and the job has not begun or was edited while it was
    /// suspended.
    Refused,
}

/// Chooses the specification that a job runs under. A job that has begun continues under the specification
/// that it began with, if `present` is refused, or if it would train something else although the job was not
/// edited. `present` may be refused by a stricter setting, by broken defaults or by a rule of a later
/// release, and a later release may have other defaults. `is_unedited` says whether the job still has the
/// specification that the status records; `has_pods` shows that a job has begun whose first status was never
/// written.
pub fn specification(
    status: &RLTrainingJobStatus,
    has_pods: bool,
    is_unedited: bool,
    present: Result<&AcceptedStatus, &Invalid>,
) -> Specification {
    let has_ended = status.completion_time.is_some();
    let has_begun = status.attempt.is_some() || has_pods;
    match present {
        Ok(present) => {
            let computes_otherwise = |recorded: &AcceptedStatus| {
                is_unedited && recorded.training_digest != present.training_digest
            };
            match status.accepted.as_ref().is_some_and(computes_otherwise) {
                true if has_begun && !has_ended => Specification::BeganWith,
                _ => Specification::Present,
            }
        }
        Err(_) => {
            let is_active = status.active_since.is_some() || has_pods;
            let may_continue = has_ended || is_active || is_unedited;
            if has_begun && may_continue { Specification::BeganWith } else { Specification::Refused }
        }
    }
}

/// A job whose specification is refused, and that cannot continue under the one that it began with.
#[derive(Clone, Copy, Debug)]
pub struct RefusedJob<'a> {
    /// The status as last written.
    pub status: &'a RLTrainingJobStatus,
    /// The generation of the specification.
    pub generation: i64,
    /// Whether the specification suspends the job.
    pub is_suspended: bool,
    /// Whether the job has pods.
    pub has_pods: bool,
}

/// Returns the decision about a refused job: no pod is created or deleted. A job that has ended keeps its
/// conditions. A job that has begun is `Stalled` and not `Reconciling`; its other conditions stay as they
/// are, unless its last pod has terminated in the meantime.
pub fn refuse(job: &RefusedJob<'_>, invalid: &Invalid, now: Timestamp) -> Decision {
    let mut status = job.status.clone();
    status.observed_generation = Some(job.generation);
    let has_ended = status.completion_time.is_some();
    let refused = JobState::Invalid(invalid.reason(), invalid.to_string());
    let state = if has_ended { JobState::of_finished(&status) } else { refused };
    if status.attempt.is_some() && !has_ended && !status.conditions.is_empty() {
        if has_just_paused(job) {
            let paused = paused(job).unwrap_or_else(|| state.clone());
            conditions::write(&mut status, &paused, None, now);
        }
        conditions::hold(&mut status, &state, now);
    } else {
        conditions::write(&mut status, &state, None, now);
    }
    Decision {
        delete: Vec::new(),
        queue: None,
        needs_children: false,
        assign: Vec::new(),
        start: Vec::new(),
        delete_job: false,
        status,
        state,
        warnings: Vec::new(),
        apply_failure: None,
        requeue_after: None,
    }
}

/// Whether the last pod of a paused attempt is gone, but the status is not `Suspended` yet.
fn has_just_paused(job: &RefusedJob<'_>) -> bool {
    let is_paused = job.status.active_since.is_none() && !job.has_pods;
    is_paused && !job.status.is(ConditionType::Suspended)
}

/// Returns the state in which a job without pods is paused; `None` if the job was resumed.
fn paused(job: &RefusedJob<'_>) -> Option<JobState> {
    if job.is_suspended {
        return Some(JobState::Suspended);
    }
    let queue = job.status.queue.as_ref()?;
    Some(JobState::Queued(Reason::Queued, format!("waits in queue {queue}")))
}

impl Decision {
    /// Returns the decision with a note in `Stalled` that the present specification is refused, and that the
    /// job continues under the one that it began with. `channel_is_closed` says whether the chart's
    /// NetworkPolicy blocks the reports of its pods.
    #[must_use]
    pub fn despite(mut self, refused: &Invalid, channel_is_closed: bool) -> Self {
        if self.status.completion_time.is_none() {
            let consequence = if channel_is_closed { CHANNEL_IS_CLOSED } else { "" };
            let why = refused.to_string();
            conditions::note_refused(&mut self.status, refused.reason(), consequence, &why);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use rlt_api::status::{Condition, ConditionStatus, Phase};
    use serde_json::{Value, json};

    use super::*;
    use crate::decide::decide;
    use crate::decide::fixtures::{input, now, prepared};

    fn invalid() -> Invalid {
        Invalid::NotAllowed(vec!["hostNetwork".into()])
    }

    fn status(fields: Value) -> RLTrainingJobStatus {
        serde_json::from_value(fields).unwrap()
    }

    fn digests(training: &str) -> AcceptedStatus {
        AcceptedStatus { training_digest: training.into(), ..AcceptedStatus::default() }
    }

    fn condition(status: &RLTrainingJobStatus, type_: ConditionType) -> &Condition {
        status.conditions.iter().find(|condition| condition.type_ == type_).unwrap()
    }

    const ACTIVE: &str = "2026-01-01T00:00:00Z";

    #[test]
    fn a_refused_job_continues_if_it_has_begun_and_was_not_edited_while_it_was_suspended() {
        let invalid = invalid();
        let choose = |fields: Value, has_pods: bool, is_unedited: bool| {
            specification(&status(fields), has_pods, is_unedited, Err(&invalid))
        };
        let (new, suspended) = (json!({}), json!({"attempt": 1}));
        let active = json!({"attempt": 1, "activeSince": ACTIVE});
        let ended = json!({"attempt": 1, "completionTime": ACTIVE});
        assert_eq!(choose(new.clone(), false, true), Specification::Refused);
        assert_eq!(choose(new, true, false), Specification::BeganWith, "its first status was not written");
        assert_eq!(choose(suspended.clone(), false, false), Specification::Refused);
        assert_eq!(choose(suspended, false, true), Specification::BeganWith);
        assert_eq!(choose(active, false, false), Specification::BeganWith);
        assert_eq!(choose(ended, false, false), Specification::BeganWith);
    }

    #[test]
    fn a_valid_specification_is_taken_unless_it_computes_otherwise_without_an_edit() {
        let record = json!({"generation": 1, "manifestDigest": "", "specDigest": "", "trainingDigest": "a"});
        let active = json!({"attempt": 1, "activeSince": ACTIVE, "accepted": record});
        let choose = |training: &str, is_unedited: bool| {
            specification(&status(active.clone()), false, is_unedited, Ok(&digests(training)))
        };
        assert_eq!(choose("a", true), Specification::Present);
        assert_eq!(choose("b", true), Specification::BeganWith);
        assert_eq!(choose("b", false), Specification::Present);
        let unrecorded = status(json!({"attempt": 1, "activeSince": ACTIVE}));
        assert_eq!(specification(&unrecorded, false, false, Ok(&digests("b"))), Specification::Present);
    }

    #[test]
    fn a_job_that_has_ended_stays_as_it_ended_when_it_is_refused() {
        for end in ["Complete", "Failed"] {
            let failure = json!({
                "attempt": 1, "cause": "BadConfig", "message": "m", "advice": "a", "time": ACTIVE,
            });
            let mut ended = json!({"attempt": 1, "completionTime": ACTIVE});
            if end == "Failed" {
                ended["lastFailure"] = failure;
            }
            let prepared = prepared(2, json!({}));
            let ended = status(ended);
            let ended = decide(&input(&prepared, &ended, &[])).status;
            let job = RefusedJob { status: &ended, generation: 2, is_suspended: false, has_pods: false };
            let refused = refuse(&job, &invalid(), now());
            let of = |status: &RLTrainingJobStatus| {
                let all = status.conditions.iter();
                all.map(|one| (one.type_, one.status, one.reason.clone())).collect::<Vec<_>>()
            };
            assert_eq!(of(&refused.status), of(&ended));
            assert_eq!(refused.status.phase, ended.phase);
            assert_eq!(refused.events(&ended), []);
        }
    }

    #[test]
    fn a_job_whose_first_specification_is_lost_is_stalled_not_reconciling_and_else_as_it_was() {
        let prepared = prepared(2, json!({}));
        let running = status(json!({"attempt": 1, "activeSince": ACTIVE}));
        let mut running = decide(&input(&prepared, &running, &[])).status;
        assert!(running.is(ConditionType::Reconciling), "its workers start");
        running.phase = Some(Phase::Running);
        for condition in &mut running.conditions {
            let is_ready = condition.type_ == ConditionType::PodsReady;
            condition.status = if is_ready { ConditionStatus::True } else { condition.status };
        }
        let job = RefusedJob { status: &running, generation: 2, is_suspended: false, has_pods: true };
        let refused = refuse(&job, &invalid(), now()).status;
        for (before, after) in running.conditions.iter().zip(&refused.conditions) {
            let is_same = (before.status, &before.reason) == (after.status, &after.reason);
            let changes = [ConditionType::Stalled, ConditionType::Reconciling].contains(&before.type_);
            assert_eq!(is_same, !changes, "{after:?}");
            assert_eq!(after.observed_generation, Some(2));
        }
        assert_eq!(refused.phase, Some(Phase::Running));
        let stalled = condition(&refused, ConditionType::Stalled);
        assert_eq!((stalled.status, &*stalled.reason), (ConditionStatus::True, "PodNotAllowed"));
        assert!(!refused.is(ConditionType::Reconciling), "nothing happens any more");
    }

    #[test]
    fn a_job_that_is_edited_while_its_workers_stop_and_then_refused_is_suspended_once_they_are_gone() {
        let mut suspending = prepared(2, json!({}));
        let policy = rlt_api::spec::RunPolicySpec { suspend: true, ..Default::default() };
        suspending.job = suspending.job.with_run_policy(policy);
        let worker = [std::sync::Arc::new(crate::decide::fixtures::worker(0, 1))];
        let status = decide(&input(&suspending, &status(json!({"attempt": 1})), &worker)).status;
        assert!(status.is(ConditionType::Reconciling) && !status.is(ConditionType::Suspended));
        let refused = |status: &RLTrainingJobStatus, is_suspended| {
            let job = RefusedJob { status, generation: 2, is_suspended, has_pods: false };
            refuse(&job, &invalid(), now()).status
        };
        let suspended = refused(&status, true);
        assert_eq!(condition(&suspended, ConditionType::Suspended).reason, "Suspended");
        assert_eq!(suspended.phase, Some(Phase::Suspended));
        let resumed = refused(&status, false);
        assert_eq!(condition(&resumed, ConditionType::Suspended).reason, "NotSuspended");
        let queued = refused(&RLTrainingJobStatus { queue: Some("team".into()), ..status.clone() }, false);
        assert_eq!(condition(&queued, ConditionType::Suspended).reason, "Queued");
        for status in [suspended, resumed, queued] {
            assert!(!status.is(ConditionType::Reconciling) && status.is(ConditionType::Stalled));
            assert_eq!(refused(&status, true).conditions.len(), status.conditions.len());
        }
    }

    #[test]
    fn a_job_that_continues_despite_a_refusal_says_so_once_and_is_not_stalled() {
        let prepared = prepared(2, json!({}));
        let before = status(json!({"attempt": 1, "activeSince": ACTIVE}));
        let before = decide(&input(&prepared, &before, &[])).status;
        let decision = decide(&input(&prepared, &before, &[])).despite(&invalid(), false);
        let stalled = condition(&decision.status, ConditionType::Stalled);
        assert_eq!((stalled.status, &*stalled.reason), (ConditionStatus::False, "PodNotAllowed"));
        assert!(stalled.message.contains("continues") && stalled.message.contains("hostNetwork"));
        let events = decision.events(&before);
        assert_eq!(events.len(), 1, "{events:?}");
        assert!(events[0].is_warning && events[0].reason == Reason::PodNotAllowed, "{events:?}");
        assert!(!stalled.message.contains("NetworkPolicy"), "{stalled:?}");
        let again = decide(&input(&prepared, &decision.status, &[])).despite(&invalid(), false);
        assert_eq!((again.status.clone(), again.events(&decision.status)), (decision.status, Vec::new()));
    }

    #[test]
    fn a_job_whose_reports_the_chart_keeps_out_says_so_in_its_condition_and_an_event() {
        let prepared = prepared(2, json!({}));
        let before = status(json!({"attempt": 1, "activeSince": ACTIVE}));
        let before = decide(&input(&prepared, &before, &[])).status;
        let decision = decide(&input(&prepared, &before, &[])).despite(&invalid(), true);
        let events = decision.events(&before);
        let stalled = &condition(&decision.status, ConditionType::Stalled).message;
        for message in [stalled, &events[0].message] {
            assert!(
                message.contains("networkPolicy.admitNodes") && message.contains("hostNetwork"),
                "{message}"
            );
        }
    }

    #[test]
    fn a_status_records_the_specification_under_which_pods_are_made() {
        let prepared = prepared(2, json!({}));
        let begun = decide(&input(&prepared, &RLTrainingJobStatus::default(), &[]));
        assert_eq!(begun.status.accepted.as_ref(), Some(&prepared.accepted));
        let mut edited = prepared.clone();
        edited.accepted =
            AcceptedStatus { generation: 2, spec_digest: "x".into(), ..prepared.accepted.clone() };
        edited.job =
            edited.job.with_run_policy(rlt_api::spec::RunPolicySpec { suspend: true, ..Default::default() });
        let suspended = decide(&input(&edited, &begun.status, &[]));
        assert_eq!(suspended.status.accepted, begun.status.accepted, "no pod was made under the edit");
        edited.accepted.spec_digest.clone_from(&prepared.accepted.spec_digest);
        let suspended = decide(&input(&edited, &begun.status, &[]));
        assert_eq!(suspended.status.accepted.map(|record| record.generation), Some(2));
    }
}
