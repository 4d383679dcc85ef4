//! Proves that Events are published although the first status of a job waits to be written or the operator is
//! asked to stop, and that each has its own message.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// Returns the reasons of the published Events, after the tasks in the background had time to run.
pub(super) async fn reasons(server: &Server) -> Vec<String> {
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    reasons_until_now(server)
}

fn reasons_until_now(server: &Server) -> Vec<String> {
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

#[tokio::test(start_paused = true)]
async fn events_are_sent_although_the_operator_is_asked_to_stop_while_it_writes_their_status() {
    let limiter = Limiter::new(CallRate::default(), MAX_IN_FLIGHT);
    let stopped = limiter.clone();
    let stop_at_status = move |method: &Method, path: &str| {
        if *method == Method::PATCH && path.ends_with("/status") {
            stopped.close();
        }
        None
    };
    let server = Server::with_limiter(Box::new(stop_at_status), limiter);
    let context = Arc::new(context(&server));
    runs(&context);
    reconcile(Arc::new(job(&begun())), context.clone()).await.unwrap();
    assert!(server.status().is_some() && reasons_until_now(&server).is_empty());
    assert_eq!(context.events.finish().await, 0);
    assert_eq!(reasons_until_now(&server), ["WorkersRunning"]);
}

/// Store of reports in which the trainer's warning has one more reason, of a later release, at each read.
#[derive(Debug, Default)]
struct MoreWarnings(AtomicUsize);

impl observe::Reports for MoreWarnings {
    fn latest(&self, _: &JobKey) -> Option<Report> {
        let num_reasons = self.0.fetch_add(1, Ordering::SeqCst) + 1;
        let warning_reasons: Vec<String> = (1..=num_reasons).map(|idx| format!("Later{idx}")).collect();
        let warning = Some(warning_reasons.join("; "));
        let progress = Progress { step: 3, num_steps: 60, warning, warning_reasons, ..Progress::default() };
        Some(Report { attempt: 1, progress: Some(progress), ..Report::default() })
    }
}

#[tokio::test(start_paused = true)]
async fn each_event_has_the_message_of_its_own_change() {
    let server = Server::new(Box::new(|_, _| None));
    let context = Context { reports: Arc::new(MoreWarnings::default()), ..context(&server) };
    let (context, job) = (Arc::new(context), Arc::new(job(&begun())));
    runs(&context);
    for _ in 0..2 {
        reconcile(job.clone(), context.clone()).await.unwrap();
        reasons(&server).await;
    }
    let calls = server.calls.lock().unwrap();
    let of_warnings = calls.iter().filter(|(.., sent)| sent["reason"] == "OtherWarning");
    let events: Vec<_> = of_warnings.map(|(method, _, sent)| (method, &sent["note"])).collect();
    assert_eq!(events, [(&Method::POST, &json!("Later1")), (&Method::POST, &json!("Later1; Later2"))]);
}
