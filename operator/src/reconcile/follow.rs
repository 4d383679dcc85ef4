//! OpenTelemetry spans of the operator: one for each reconcile, one for each attempt that ended.

use std::time::SystemTime;

use rlt_api::status::{ConditionType, FailureStatus, RLTrainingJobStatus};
use rlt_objects::job::Job;
use rlt_traces::AttemptTrace;
use tracing::Span;
use tracing::field::Empty;

use crate::apply::ApplyError;
use crate::decide::Decision;

/// Returns the span of a reconcile, in the trace of the current attempt.
pub(super) fn reconcile_span(job: &Job, status: &RLTrainingJobStatus) -> Span {
    let attempt = status.attempt.unwrap_or(1);
    let span = tracing::info_span!(
        target: rlt_traces::TARGET, "reconcile", namespace = job.namespace(), job = job.name(), attempt,
        decision = Empty, num_started = Empty, num_deleted = Empty,
        otel.status_code = Empty, otel.status_description = Empty
    );
    if !span.is_disabled() {
        AttemptTrace::of(job.uid(), attempt).adopt(&span);
    }
    span
}

/// Records the decision in the span of this reconcile.
pub(super) fn note(decision: &Decision) {
    let span = Span::current();
    span.record("decision", tracing::field::debug(&decision.state));
    span.record("num_started", decision.start.len());
    span.record("num_deleted", decision.delete.len());
}

/// Records the error in the span of this reconcile.
pub(super) fn note_error(span: &Span, error: &ApplyError) {
    span.record("otel.status_code", "ERROR");
    span.record("otel.status_description", tracing::field::display(error));
}

/// Writes the trace id of an attempt that begins with the status `after`, if this operator's workers export
/// traces.
pub(super) fn name_trace(
    job: &Job,
    sends_traces: bool,
    before: &RLTrainingJobStatus,
    after: &mut RLTrainingJobStatus,
) {
    if let Some(attempt) = after.attempt.filter(|_| after.attempt != before.attempt) {
        let trace = AttemptTrace::of(job.uid(), attempt);
        after.trace_id = (sends_traces && trace.is_followed()).then(|| trace.id());
    }
}

/// Exports the span of an attempt that ended with the status `after`. The span is lost if the operator ends
/// before the export.
pub(super) fn end_attempt(job: &Job, before: &RLTrainingJobStatus, after: &RLTrainingJobStatus) {
    let Some(ended) = Ended::between(before, after) else { return };
    let attributes = [
        ("namespace", job.namespace().to_owned()),
        ("job", job.name().to_owned()),
        ("attempt", ended.attempt.to_string()),
        ("outcome", ended.outcome()),
    ];
    let error = ended.failure.map(|failure| failure.message.clone());
    AttemptTrace::of(job.uid(), ended.attempt).end(ended.start, attributes, error);
}

/// An attempt that has ended.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Ended<'a> {
    attempt: u32,
    start: SystemTime,
    /// Failure that ended the attempt, if any.
    failure: Option<&'a FailureStatus>,
    is_complete: bool,
}

impl<'a> Ended<'a> {
    /// Returns the attempt that ended between the statuses `before` and `after`; `None` if its trace is not
    /// sampled.
    fn between(before: &RLTrainingJobStatus, after: &'a RLTrainingJobStatus) -> Option<Self> {
        before.trace_id.as_ref()?;
        let attempt =
            before.attempt.filter(|attempt| !is_over(before, *attempt) && is_over(after, *attempt))?;
        let now = SystemTime::now();
        let start =
            before.attempt_start_time.as_deref().and_then(|time| time.parse::<jiff::Timestamp>().ok());
        Some(Self {
            attempt,
            // An attempt can end before the time at which it should start.
            start: start.map_or(now, |start| SystemTime::from(start).min(now)),
            failure: after.last_failure.as_ref().filter(|failure| failure.attempt == attempt),
            is_complete: after.is(ConditionType::Complete),
        })
    }

    fn outcome(&self) -> String {
        match self.failure {
            Some(failure) => format!("{:?}", failure.cause),
            None if self.is_complete => "Complete".to_owned(),
            None => "Suspended".to_owned(),
        }
    }
}

fn is_over(status: &RLTrainingJobStatus, attempt: u32) -> bool {
    status.attempt != Some(attempt) || status.completion_time.is_some() || status.is(ConditionType::Suspended)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn status(attempt: u32, true_condition: &str, more: Value) -> RLTrainingJobStatus {
        let mut status = json!({
            "attempt": attempt, "traceId": "0af7651916cd43dd8448eb211c80319c",
            "attemptStartTime": "2026-01-01T00:00:00Z",
            "conditions": [{
                "type": true_condition, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z",
                "reason": "Some", "message": "",
            }],
        });
        status.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(status).unwrap()
    }

    /// Returns the attempts that end in a sequence of statuses, with the result of each.
    fn ends(life: &[RLTrainingJobStatus]) -> Vec<(u32, String)> {
        let ended = life.windows(2).filter_map(|pair| Ended::between(&pair[0], &pair[1]));
        ended.map(|ended| (ended.attempt, ended.outcome())).collect()
    }

    #[test]
    fn each_attempt_ends_once_when_its_last_worker_is_given_up() {
        let failure = |attempt| {
            json!({"lastFailure": {
                "attempt": attempt, "cause": "PeerLost", "message": "m", "advice": "a", "time": "2026-01-01T00:01:00Z",
            }})
        };
        let done = json!({"completionTime": "2026-01-01T01:00:00Z"});
        let life = [
            status(1, "Reconciling", json!({})),
            status(1, "Progressing", json!({})),
            status(2, "Reconciling", failure(1)),
            status(2, "Progressing", failure(1)),
            status(2, "Reconciling", failure(1)),
            status(2, "Suspended", failure(1)),
            status(2, "Suspended", failure(1)),
            status(3, "Reconciling", failure(1)),
            status(3, "Complete", done.clone()),
            status(3, "Complete", done),
        ];
        assert_eq!(ends(&life), [(1, "PeerLost".into()), (2, "Suspended".into()), (3, "Complete".into())]);
    }

    #[test]
    fn an_attempt_that_is_not_traced_is_not_exported() {
        let unfollowed =
            |attempt| RLTrainingJobStatus { trace_id: None, ..status(attempt, "Reconciling", json!({})) };
        assert_eq!(ends(&[unfollowed(1), unfollowed(2)]), []);
    }
}
