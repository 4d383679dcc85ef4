//! Proves that Events are published although the first status of a job waits to be written.

use super::*;

/// The reasons of the Events that were published, after everything that runs in the background had its turn.
async fn reasons(server: &Server) -> Vec<String> {
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    let calls = server.calls.lock().unwrap();
    let events =
        calls.iter().filter(|(method, path, _)| *method == Method::POST && path.ends_with("/events"));
    events.map(|(.., sent)| sent["reason"].as_str().unwrap_or_default().to_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_first_status_waits_is_warned_of_its_settings_once() {
    let server = Server::new(Box::new(|_, _| None));
    let context = Arc::new(context(&server));
    let secret = json!([{"name": "WANDB_API_KEY", "value": "abc"}]);
    let job = Arc::new(with_workers(json!({"env": secret})));
    reconcile(job.clone(), context.clone()).await.unwrap();
    assert!(server.made("/pods") && server.status().is_none(), "the first status waits for the workers");
    assert!(reasons(&server).await.is_empty(), "Events follow their status");
    runs(&context);
    for _ in 0..2 {
        reconcile(job.clone(), context.clone()).await.unwrap();
    }
    assert!(server.status().is_some());
    let reasons = reasons(&server).await;
    let num = |reason: &str| reasons.iter().filter(|one| *one == reason).count();
    assert_eq!((num("OpenSecret"), num("WorkersRunning")), (1, 1), "{reasons:?}");
}
