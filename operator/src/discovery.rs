//! Discovery of optional APIs: Kueue and gang schedulers. One call at the start, repeated only when a job
//! needs an API that was missing. A missing API is neither watched nor called.
//!
//! A failed call says nothing about the cluster: it is retried here with backoff, and nowhere else. So is an
//! answer without the group of the jobs: an API server that has just started answers before it has read its
//! custom resources, and Kueue's are among them.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIGroupList;
use kube::{Client, Resource as _};
use rlt_objects::job::Job;
use rlt_objects::served::Served;
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;

use crate::backoff;

/// Minimum interval between a response and the next call.
const PATIENCE: Duration = Duration::from_secs(30);
/// Wait after a failed call, doubled with each consecutive failure.
const FIRST_RETRY: Duration = Duration::from_millis(250);
/// Longest wait after failed calls.
const LONGEST_RETRY: Duration = Duration::from_secs(10);

/// Optional APIs as last discovered.
#[derive(Debug)]
pub struct Discovery {
    served: watch::Sender<Served>,
    schedule: Mutex<Schedule>,
    patience: Duration,
}

/// Time of the next call.
#[derive(Debug, Default)]
struct Schedule {
    /// Earliest time of the next call; `None` before the first one.
    due: Option<Instant>,
    has_answer: bool,
    /// Number of consecutive failed calls.
    num_failures: u32,
}

impl Default for Discovery {
    fn default() -> Self {
        Self::new(PATIENCE)
    }
}

impl Discovery {
    /// Returns a discovery without a response yet.
    pub fn new(patience: Duration) -> Self {
        Self { served: watch::Sender::new(Served::default()), schedule: Mutex::default(), patience }
    }

    /// Returns the APIs of the last response.
    pub fn served(&self) -> Served {
        *self.served.borrow()
    }

    /// Returns a receiver of changes of the served APIs.
    pub fn changes(&self) -> watch::Receiver<Served> {
        self.served.subscribe()
    }

    /// Calls the API server until it responds. No job may be reconciled before that: Kueue would seem to be
    /// missing, and jobs with a queue would be suspended.
    pub async fn wait_until_known(&self, client: &Client) {
        loop {
            self.refresh(client).await;
            let (has_answer, due) = {
                let schedule = self.schedule.lock().await;
                (schedule.has_answer, schedule.due)
            };
            match due {
                Some(due) if !has_answer => tokio::time::sleep_until(due).await,
                _ => return,
            }
        }
    }

    /// Calls the API server, unless it responded or failed recently. After a failure the last response stays
    /// valid.
    pub async fn refresh(&self, client: &Client) {
        let mut schedule = self.schedule.lock().await;
        if schedule.due.is_some_and(|due| Instant::now() < due) {
            return;
        }
        match Box::pin(client.list_api_groups()).await {
            Ok(groups) if has_jobs(&groups) => {
                let due = Some(Instant::now() + self.patience);
                *schedule = Schedule { due, has_answer: true, num_failures: 0 };
                let served = Served::read(&groups);
                self.served.send_if_modified(|known| {
                    let is_new = *known != served;
                    *known = served;
                    is_new
                });
            }
            failed => {
                let wait = backoff::doubled(FIRST_RETRY, schedule.num_failures, LONGEST_RETRY);
                schedule.due = Some(Instant::now() + wait);
                schedule.num_failures = schedule.num_failures.saturating_add(1);
                let error = failed.err().map(|error| error.to_string());
                let error = error.unwrap_or_else(|| "the API server does not serve RLTrainingJobs".into());
                tracing::warn!(error, ?wait, "API discovery failed");
            }
        }
    }

    /// Waits until Kueue is installed.
    pub async fn kueue(self: &Arc<Self>) {
        let mut changes = self.changes();
        // The sender is owned by `self`, so it is never closed.
        let _ = changes.wait_for(|served| served.has_workloads).await;
    }
}

/// Whether the API server lists the group of the jobs, and so has read its custom resources.
fn has_jobs(groups: &APIGroupList) -> bool {
    groups.groups.iter().any(|group| group.name == Job::group(&()))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::json;

    use super::*;

    fn served(groups: &[(&str, &[&str])]) -> Served {
        let group = |(name, versions): &(&str, &[&str])| {
            let versions = versions
                .iter()
                .map(|version| json!({"groupVersion": format!("{name}/{version}"), "version": version}));
            json!({"name": name, "versions": versions.collect::<Vec<_>>()})
        };
        let groups: Vec<_> = groups.iter().map(group).collect();
        Served::read(&serde_json::from_value(json!({"groups": groups})).unwrap())
    }

    const NO_ANSWER: (u16, &[&str]) = (503, &[]);
    const JUST_STARTED: (u16, &[&str]) = (200, &["apiregistration.k8s.io"]);

    /// Makes an API server that gives these answers (code and groups) before it lists Kueue and the jobs. The
    /// counter has the number of calls.
    fn server(first: Vec<(u16, &'static [&'static str])>) -> (Client, Arc<AtomicUsize>) {
        let num_calls = Arc::new(AtomicUsize::new(0));
        let counter = num_calls.clone();
        let service = tower::service_fn(move |_: Request<Body>| {
            let call = counter.fetch_add(1, Ordering::SeqCst);
            let listed: (u16, &[&str]) = (200, &["kueue.x-k8s.io", "rltraining.dev"]);
            let (code, names) = first.get(call).copied().unwrap_or(listed);
            let version =
                |name: &str| json!({"groupVersion": format!("{name}/v1beta2"), "version": "v1beta2"});
            let group = |name: &&str| json!({"name": name, "versions": [version(name)]});
            let groups: Vec<_> = names.iter().map(group).collect();
            let answer = match code {
                200 => json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}),
                _ => {
                    json!({"kind": "Status", "status": "Failure", "code": code, "reason": "", "message": ""})
                }
            };
            let body = Body::from(serde_json::to_vec(&answer).unwrap());
            let response = Response::builder().status(code).body(body).unwrap();
            futures::future::ready(Ok::<_, tower::BoxError>(response))
        });
        (Client::new(service, "default"), num_calls)
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_call_is_retried_with_back_off_for_all_callers() {
        let (client, num_calls) = server(vec![NO_ANSWER; 100]);
        let discovery = Discovery::default();
        let begin = Instant::now();
        // Jobs that need a queue refresh the discovery with every reconcile.
        while begin.elapsed() < Duration::from_secs(60) {
            discovery.refresh(&client).await;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // After 0, 0.25, 0.75, 1.75, 3.75 and 7.75 s, and then every 10 s.
        let num_calls = num_calls.load(Ordering::SeqCst);
        assert!((10..=12).contains(&num_calls), "{num_calls} calls in a minute");
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_known_before_the_first_answer_however_often_the_call_fails() {
        let (client, num_calls) = server(vec![NO_ANSWER; 4]);
        let discovery = Discovery::default();
        let begin = Instant::now();
        discovery.wait_until_known(&client).await;
        assert!(discovery.served().has_workloads);
        assert_eq!(num_calls.load(Ordering::SeqCst), 5);
        assert!(begin.elapsed() < Duration::from_secs(4), "{:?}", begin.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn an_api_server_that_has_not_read_its_custom_resources_makes_no_queue_seem_missing() {
        let (client, num_calls) = server(vec![JUST_STARTED, JUST_STARTED]);
        let discovery = Discovery::default();
        discovery.wait_until_known(&client).await;
        assert!(discovery.served().has_workloads);
        assert_eq!(num_calls.load(Ordering::SeqCst), 3);
        let (restarted, num_calls) = server(vec![JUST_STARTED]);
        tokio::time::sleep(PATIENCE).await;
        discovery.refresh(&restarted).await;
        assert_eq!(num_calls.load(Ordering::SeqCst), 1);
        assert!(discovery.served().has_workloads, "the last complete answer stays valid");
    }

    #[test]
    fn served_apis_are_found_by_group_and_version() {
        assert_eq!(served(&[("scheduling.k8s.io", &["v1"]), ("apps", &["v1"])]), Served::default());
        let all = served(&[
            ("kueue.x-k8s.io", &["v1beta1", "v1beta2"]),
            ("scheduling.k8s.io", &["v1", "v1alpha2"]),
            ("scheduling.volcano.sh", &["v1beta1"]),
            ("scheduling.x-k8s.io", &["v1alpha1"]),
        ]);
        assert!(all.has_workloads && all.has_volcano && all.has_coscheduling);
        assert_eq!(all.native_groups, Some("v1alpha2"));
    }

    #[test]
    fn the_best_served_version_is_used_and_none_without_pod_groups() {
        let native = |versions| served(&[("scheduling.k8s.io", versions)]).native_groups;
        assert_eq!(native(&["v1", "v1alpha3", "v1beta1"]), Some("v1beta1"));
        assert_eq!(native(&["v1", "v1alpha1"]), None);
        assert!(!served(&[("kueue.x-k8s.io", &["v1beta1"])]).has_workloads);
    }
}
