//! An Event reduced to what is shown, and the selection of a namespace's Events on a job, as pure functions.

use k8s_openapi::api::core::v1::Event;
use k8s_openapi::jiff::Timestamp;
use rlt_objects::build;
use rlt_objects::job::Job;
use serde::Serialize;

/// An Event, reduced to what is shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct JobEvent {
    /// Time of the last occurrence (RFC 3339).
    pub(crate) time: Option<String>,
    pub(crate) is_warning: bool,
    /// Kind of the object.
    pub(crate) kind: String,
    /// Name of the object.
    pub(crate) name: String,
    pub(crate) reason: String,
    pub(crate) message: String,
    /// Number of occurrences.
    pub(crate) count: u32,
}

impl JobEvent {
    fn read(event: &Event) -> Self {
        let count = event.series.as_ref().and_then(|series| series.count).or(event.count).unwrap_or(1);
        Self {
            time: time(event).map(|time| format!("{time:.0}")),
            is_warning: event.type_.as_deref() == Some("Warning"),
            kind: event.involved_object.kind.clone().unwrap_or_default(),
            name: event.involved_object.name.clone().unwrap_or_default(),
            reason: event.reason.clone().unwrap_or_default(),
            message: event.message.clone().unwrap_or_default().trim().to_owned(),
            count: u32::try_from(count).unwrap_or(1),
        }
    }

    pub(crate) fn time(&self) -> Option<Timestamp> {
        self.time.as_ref()?.parse().ok()
    }

    /// Formats the object as `kind/name`.
    pub(crate) fn about(&self) -> String {
        format!("{}/{}", self.kind, self.name)
    }
}

fn time(event: &Event) -> Option<Timestamp> {
    let of_series =
        event.series.as_ref().and_then(|series| series.last_observed_time.as_ref()).map(|time| time.0);
    let last = event.last_timestamp.as_ref().or(event.first_timestamp.as_ref()).map(|time| time.0);
    of_series.or(last).or_else(|| event.event_time.as_ref().map(|time| time.0))
}

/// Selects the Events on a job, its pods and its claim, oldest first, without those of an earlier job with
/// the same name.
pub(crate) fn of_job(job: &Job, events: &[Event]) -> Vec<JobEvent> {
    let created = job.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let is_of_now = |event: &&Event| match (created, time(event)) {
        (Some(created), Some(time)) => time >= created,
        _ => true,
    };
    let mut events: Vec<_> =
        events.iter().filter(|event| is_about(job, event)).filter(is_of_now).map(JobEvent::read).collect();
    events.sort_by(|a, b| a.time.cmp(&b.time));
    events
}

fn is_about(job: &Job, event: &Event) -> bool {
    let about = &event.involved_object;
    let name = about.name.as_deref().unwrap_or_default();
    let of_workers = |name: &str| {
        let idx = name.strip_prefix(&build::workers_name(job.name())).and_then(|rest| rest.strip_prefix('-'));
        idx.is_some_and(|idx| !idx.is_empty() && idx.bytes().all(|byte| byte.is_ascii_digit()))
    };
    match about.kind.as_deref() {
        Some(rlt_api::KIND) => about.uid.as_deref() == Some(job.uid()),
        Some("Pod") => of_workers(name),
        Some("PersistentVolumeClaim") => name == build::claim_name(job.name()),
        Some("Workload") => about.name.as_deref().is_some_and(|name| name.contains(job.name())),
        _ => false,
    }
}
