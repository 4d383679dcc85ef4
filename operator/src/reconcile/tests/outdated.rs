//! Proves that an operator changes no pod while its watch is behind the writes of the previous leader.

use super::*;

/// Returns the number of deleted pods and of status writes of one reconcile of a job whose pods are of a
/// later attempt than its cached status.
async fn reconciled(is_outdated: bool) -> (usize, usize, Result<Action, ApplyError>) {
    let server = Server::new(Box::new(move |method, path| match *method {
        Method::DELETE => Some((200, json!({"kind": "Status", "metadata": {}}))),
        Method::PATCH if is_outdated && path.ends_with("/status") => {
            Some(refusal(409, "Conflict", "the object has been modified"))
        }
        _ => None,
    }));
    let context = context(&server);
    for idx in 0..2 {
        let worker = Worker { phase: WorkerPhase::Running, is_ready: true, ..fixtures::worker(idx, 2) };
        context.index.enter(&key(), worker);
    }
    let done = reconcile(Arc::new(job(&begun())), context.into()).await;
    let calls = server.calls.lock().unwrap();
    let num = |of: Method, part: &str| {
        calls.iter().filter(|(method, path, _)| *method == of && path.contains(part)).count()
    };
    (num(Method::DELETE, "/pods/"), num(Method::PATCH, "/status"), done)
}

#[tokio::test]
async fn a_new_leader_changes_no_pod_before_it_knows_the_newest_status() {
    let (num_deleted, num_writes, done) = reconciled(true).await;
    assert!(done.unwrap_err().is_conflict(), "the job is reconciled again");
    assert_eq!((num_deleted, num_writes), (0, 1));
    let (num_deleted, num_writes, done) = reconciled(false).await;
    done.unwrap();
    assert_eq!((num_deleted, num_writes), (2, 1), "the version is confirmed");
}
