//! Rows and pages of jobs in every state.

use k8s_openapi::jiff::Timestamp;
use rlt_objects::job::Job;
use serde_json::{Value, json};

use super::summary::Summary;
use super::{page, table};

fn now() -> Timestamp {
    "2026-01-02T00:00:00Z".parse().unwrap()
}

fn job(name: &str, status: &Value) -> Job {
    let metadata = json!({
        "name": name, "namespace": "team", "uid": "u", "generation": 1,
        "creationTimestamp": "2026-01-01T23:50:00Z",
    });
    serde_json::from_value(json!({"metadata": metadata, "spec": {}, "status": status})).unwrap()
}

fn condition(type_: &str, reason: &str, message: &str) -> Value {
    json!({
        "type": type_, "status": "True", "lastTransitionTime": "2026-01-01T23:58:00Z", "reason": reason,
        "message": message,
    })
}

fn training() -> Job {
    job(
        "training",
        &json!({
            "conditions": [condition("Progressing", "StepsAdvancing", "the trainer finishes steps")],
            "attempt": 2, "traceId": "0af7651916cd43dd8448eb211c80319c", "ready": "8/8",
            "failuresByCause": {"Disrupted": 1},
            "progress": {
                "step": 1200, "numSteps": 5000, "reward": 0.51234, "heldOutReward": 0.44, "kl": 0.00123,
                "phase": "Training", "tokensPerSecond": 15321.4, "goodput": 0.934, "remainingSeconds": 7300,
            },
            "checkpoints": [
                {"step": 1000, "path": "/storage/runs/training/checkpoints/1000", "digest": "d", "latest": true,
                 "time": "2026-01-01T23:55:00Z"},
            ],
        }),
    )
}

fn failed() -> Job {
    job(
        "failed",
        &json!({
            "conditions": [condition("Failed", "OutOfMemory", "failed-trainer-0: exit code 137: OOMKilled")],
            "attempt": 2, "ready": "0/1", "completionTime": "2026-01-01T23:58:00Z",
            "failuresByCause": {"OutOfMemory": 2},
            "progress": {"step": 3, "numSteps": 60, "remainingSeconds": 100},
        }),
    )
}

fn all() -> Vec<Summary> {
    let queued = condition("Suspended", "Queued", "waiting in queue research");
    let jobs =
        [training(), failed(), job("queued", &json!({"conditions": [queued]})), job("new", &json!({}))];
    jobs.iter().map(|job| Summary::of(job, now())).collect()
}

#[test]
fn jobs_are_rows() {
    insta::assert_snapshot!(table::render(&all(), true));
}

#[test]
fn the_namespace_is_left_out_where_it_is_one() {
    let table = table::render(&all(), false);
    assert!(table.starts_with("NAME ") && !table.contains("team"), "{table}");
}

#[test]
fn a_job_that_trains_is_a_page() {
    insta::assert_snapshot!(page::render(&Summary::of(&training(), now())));
}

#[test]
fn a_page_says_in_which_domains_workers_are() {
    let domains = json!([{"name": "r7", "workers": "0-1"}, {"name": "r2", "workers": "2-3"}]);
    let group = json!({
        "name": "trainer", "desired": 4, "pending": 0, "running": 4, "ready": 4, "succeeded": 0, "failed": 0,
        "terminating": 0, "topology": [{"label": "rack", "domains": domains}],
    });
    let page = page::render(&Summary::of(&job("placed", &json!({"workerGroups": [group]})), now()));
    assert!(page.contains("rack: r7 0-1, r2 2-3\n"), "{page}");
}

#[test]
fn a_job_that_failed_is_a_page_with_the_way_to_more() {
    insta::assert_snapshot!(page::render(&Summary::of(&failed(), now())));
}

#[test]
fn programs_get_the_same_under_the_names_of_the_status() {
    let summary = serde_json::to_value(Summary::of(&training(), now())).unwrap();
    assert_eq!(summary["state"], "Progressing");
    assert_eq!(summary["progress"]["step"], 1200);
    assert_eq!(summary["checkpoint"]["step"], 1000);
    assert_eq!((&summary["ageSeconds"], &summary["hasEnded"]), (&json!(600), &json!(false)));
}

#[test]
fn a_row_is_new_when_more_than_time_has_changed() {
    let (before, later) = (Summary::of(&training(), now()), Summary::of(&training(), Timestamp::now()));
    assert!(!before.differs_from(&later));
    assert!(before.differs_from(&Summary::of(&failed(), now())));
}
