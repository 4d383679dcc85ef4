//! Watch that records when statuses report that their gang runs.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use jiff::Timestamp;
use kube::Api;
use kube::core::DynamicObject;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, watcher};
use tokio::task::JoinHandle;

use crate::contestant::{Contestant, Gang};
use crate::observed::PATIENCE;

/// Watch of statuses, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Statuses {
    reported: Arc<Mutex<HashMap<String, Timestamp>>>,
    task: JoinHandle<()>,
}

impl Statuses {
    pub(crate) fn follow(api: Api<DynamicObject>, contestant: Contestant, gang: Gang) -> Self {
        let reported: Arc<Mutex<HashMap<String, Timestamp>>> = Arc::default();
        let noted = reported.clone();
        let task = tokio::spawn(async move {
            let mut objects =
                watcher(api, watcher::Config::default()).default_backoff().touched_objects().boxed();
            while let Some(object) = objects.next().await {
                let Ok(object) = object else { continue };
                if contestant.reports_running(&object, gang.num_pods) {
                    let name = object.metadata.name.unwrap_or_default();
                    noted.lock().unwrap().entry(name).or_insert_with(Timestamp::now);
                }
            }
        });
        Self { reported, task }
    }

    /// Waits until the status of this job reports that it runs; returns the time.
    pub(crate) async fn reported(&self, name: &str) -> Timestamp {
        let begun = Instant::now();
        loop {
            if let Some(at) = self.reported.lock().unwrap().get(name) {
                return *at;
            }
            assert!(begun.elapsed() < PATIENCE, "the status of {name} never says that it runs");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until `num_jobs` statuses report that their job runs; returns the time of the last one.
    pub(crate) async fn all_reported(&self, num_jobs: usize) -> Timestamp {
        let begun = Instant::now();
        loop {
            {
                let reported = self.reported.lock().unwrap();
                if reported.len() >= num_jobs {
                    return reported.values().max().copied().unwrap();
                }
                assert!(begun.elapsed() < PATIENCE, "{} of {num_jobs} statuses report it", reported.len());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

impl Drop for Statuses {
    fn drop(&mut self) {
        self.task.abort();
    }
}
