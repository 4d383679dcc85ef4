//! Tests of the selection of a job's Events, and of their format.

use k8s_openapi::api::core::v1::Event;
use rlt_objects::job::Job;
use serde_json::json;

use super::job_event::of_job;
use super::render;

fn job() -> Job {
    let metadata = json!({
        "name": "adding", "namespace": "team", "uid": "this", "creationTimestamp": "2026-01-01T10:00:00Z",
    });
    serde_json::from_value(json!({"metadata": metadata})).unwrap()
}

fn event(kind: &str, name: &str, uid: &str, time: &str) -> Event {
    serde_json::from_value(json!({
        "metadata": {"name": "e"},
        "involvedObject": {"kind": kind, "name": name, "uid": uid},
        "type": if kind == "Pod" { "Warning" } else { "Normal" },
        "reason": "Reason", "message": format!("about {name} "), "lastTimestamp": time, "count": 3,
    }))
    .unwrap()
}

#[test]
fn events_of_the_job_its_pods_and_its_claim_are_shown_in_order() {
    let at = |minute: u32| format!("2026-01-01T10:{minute:02}:00Z");
    let events = [
        event("Pod", "adding-trainer-1", "p", &at(5)),
        event("RLTrainingJob", "adding", "this", &at(1)),
        event("PersistentVolumeClaim", "adding-storage", "c", &at(3)),
        event("RLTrainingJob", "adding", "the job of that name before", &at(2)),
        event("Pod", "adding-trainer-1-other", "p", &at(2)),
        event("Pod", "adding-more-trainer-0", "p", &at(2)),
        event("Pod", "adding-trainer-0", "p", "2026-01-01T09:59:00Z"),
    ];
    let shown = of_job(&job(), &events);
    insta::assert_snapshot!(render(&shown, "2026-01-01T10:10:00Z".parse().unwrap()), @r"
       9m ago   RLTrainingJob/adding                  Reason (x3): about adding
       7m ago   PersistentVolumeClaim/adding-storage  Reason (x3): about adding-storage
       5m ago ! Pod/adding-trainer-1                  Reason (x3): about adding-trainer-1
    ");
}
