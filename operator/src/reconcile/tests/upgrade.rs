//! Proves that a job keeps the training that it began with through an upgrade to a release that has other
//! defaults and writes manifests in another form, also if the operator ends between any two of its writes.

use std::sync::atomic::{AtomicUsize, Ordering};

use rlt_api::status::AcceptedStatus;
use rlt_objects::build::{MANIFEST_KEY, config_map_name};
use rlt_objects::prepare::Prepared;

use super::*;

/// Objects of the job that the API server stores.
#[derive(Clone, Debug)]
struct Stored {
    manifest: String,
    status: Value,
}

/// Returns a job of an earlier release, whose defaults were 7 steps and 3 threads.
fn of_earlier_release() -> Stored {
    let mut earlier = job(&json!({}));
    let mut spec: Value = serde_json::from_str(&earlier.spec).unwrap();
    spec["training"]["steps"] = json!(7);
    spec["workers"]["threads"] = json!(3);
    earlier.spec = spec.to_string();
    let began = Prepared::new(&earlier).unwrap();
    let accepted = AcceptedStatus {
        spec_digest: Prepared::new(&job(&json!({}))).unwrap().accepted.spec_digest,
        training_digest: "of the form of the earlier release".into(),
        ..began.accepted.clone()
    };
    let mut status = begun();
    status["accepted"] = serde_json::to_value(accepted).unwrap();
    Stored { manifest: began.job.to_yaml().unwrap(), status }
}

/// Whether a call changes an object of the job that later decisions read.
fn is_write(method: &Method, path: &str) -> bool {
    *method != Method::GET && !path.ends_with("/events")
}

/// Returns an API server with these objects, which accepts no write after `num_writes`.
fn server_of(stored: &Stored, num_writes: usize) -> Server {
    let owner = json!({
        "apiVersion": rlt_api::API_VERSION, "kind": rlt_api::KIND, "name": "quickstart", "uid": "u",
        "controller": true,
    });
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "data": {MANIFEST_KEY: stored.manifest},
        "metadata": {
            "name": config_map_name("quickstart"), "namespace": "default", "ownerReferences": [owner],
        },
    });
    let num_begun = AtomicUsize::new(0);
    Server::new(Box::new(move |method, path| {
        if *method == Method::GET && path.ends_with("/configmaps/quickstart-manifest") {
            return Some((200, map.clone()));
        }
        let is_late = is_write(method, path) && num_begun.fetch_add(1, Ordering::SeqCst) >= num_writes;
        is_late.then(|| refusal(500, "InternalError", "the operator has ended"))
    }))
}

/// Runs an operator that ends after `num_writes` writes. Returns the stored objects, and whether it had no
/// more writes to make.
async fn run(stored: &Stored, num_writes: usize) -> (Stored, bool) {
    let server = server_of(stored, num_writes);
    let context = Arc::new(context(&server));
    runs(&context);
    let map = ChildEntry::written(Child::ConfigMap.into(), Some("of the earlier release".into()));
    context.index.enter(&key(), map);
    let job = Arc::new(job(&stored.status));
    for _ in 0..4 {
        let _ = reconcile(job.clone(), context.clone()).await;
    }
    let calls = server.calls.lock().unwrap();
    let writes: Vec<_> = calls.iter().filter(|(method, path, _)| is_write(method, path)).collect();
    let mut stored = stored.clone();
    for (_, path, sent) in writes.iter().take(num_writes) {
        if path.ends_with("/configmaps/quickstart-manifest") {
            stored.manifest = sent["data"][MANIFEST_KEY].as_str().unwrap().to_owned();
        }
        if path.ends_with("/quickstart/status") {
            stored.status = sent["status"].clone();
        }
    }
    (stored, writes.len() <= num_writes)
}

#[tokio::test]
async fn a_job_keeps_its_training_wherever_the_first_operator_of_another_release_ends() {
    let earlier = of_earlier_release();
    for num_writes in 0.. {
        let (left, has_finished) = run(&earlier, num_writes).await;
        let (settled, _) = run(&left, usize::MAX).await;
        let keeps = settled.manifest.contains("steps: 7") && !settled.manifest.contains("threads: 3");
        assert!(keeps, "after {num_writes} writes: {}", settled.manifest);
        let training = &settled.status["accepted"]["trainingDigest"];
        assert_ne!(training, "of the form of the earlier release", "after {num_writes} writes");
        if has_finished {
            assert!(num_writes > 1, "an operator that is not disturbed writes the status and the ConfigMap");
            return;
        }
    }
}
