//! Proves that the end of a job counts for others only once its status says so.

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
