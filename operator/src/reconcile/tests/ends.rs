//! Proves that launchers learn the end of a job only once it is in the job's status, and that an expired job
//! is deleted only in the version that was decided about.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::*;

/// A store of reports that counts how often launchers are told that no attempt follows.
#[derive(Debug, Default)]
struct CountedEnds(AtomicUsize);

impl observe::Reports for CountedEnds {
    fn latest(&self, _: &JobKey) -> Option<Report> {
        None
    }

    fn end_launchers(&self, _: &JobKey) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn launchers_hear_that_no_attempt_follows_only_once_the_status_has_the_end() {
    let is_edited = Arc::new(AtomicBool::new(true));
    let edited = is_edited.clone();
    let server = Server::new(Box::new(move |method, path| {
        let is_status = *method == Method::PATCH && path.ends_with("/quickstart/status");
        let is_refused = is_status && edited.load(Ordering::SeqCst);
        is_refused.then(|| refusal(409, "Conflict", "the object has been modified"))
    }));
    let ends = Arc::new(CountedEnds::default());
    let context = Arc::new(Context { reports: ends.clone(), ..context(&server) });
    for idx in 0..2 {
        let exit = Some(fixtures::exit(78, 1_700_000_000));
        let worker = Worker { phase: WorkerPhase::Failed, exit, ..fixtures::worker(idx, 1) };
        context.index.enter(&key(), worker);
    }
    let job = Arc::new(job(&begun()));
    assert!(reconcile(job.clone(), context.clone()).await.unwrap_err().is_conflict());
    assert_eq!(ends.0.load(Ordering::SeqCst), 0, "the edit may allow another attempt");
    is_edited.store(false, Ordering::SeqCst);
    for num_ends in [0, 1] {
        reconcile(job.clone(), context.clone()).await.unwrap();
        assert_eq!(ends.0.load(Ordering::SeqCst), num_ends);
    }
    assert!(server.status().unwrap().completion_time.is_some());
}

#[tokio::test]
async fn a_job_whose_time_is_over_is_deleted_only_if_nobody_has_changed_it_since() {
    let server = Server::new(Box::new(|method, path| {
        let is_deletion = *method == Method::DELETE && path.ends_with("/rltrainingjobs/quickstart");
        is_deletion.then(|| refusal(409, "Conflict", "the resource version does not match"))
    }));
    let mut status = begun();
    status["completionTime"] = json!("2026-01-01T01:00:00Z");
    let mut job = job(&status);
    let mut spec: Value = serde_json::from_str(&job.spec).unwrap();
    spec["runPolicy"] = json!({"ttlSecondsAfterFinished": 60});
    job.spec = spec.to_string();
    let done = reconcile(Arc::new(job), context(&server).into()).await;
    assert!(done.unwrap_err().is_outdated(), "it is decided about again");
    let calls = server.calls.lock().unwrap();
    let deletion = calls.iter().find(|(method, ..)| *method == Method::DELETE).unwrap();
    assert_eq!(deletion.2["preconditions"], json!({"uid": "u", "resourceVersion": "5"}));
}
