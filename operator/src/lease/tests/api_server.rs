//! An API server in memory that stores one Lease, for elections on a paused clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use rlt_cluster::Faults;
use serde_json::{Value, json};
use tokio::sync::watch;
use tower::{BoxError, Layer as _};

use super::status;

/// An API server in memory that stores one Lease. Clones share the Lease.
#[derive(Clone)]
pub(super) struct ApiServer {
    /// Every version of the Lease, in order. The first one has the resource version 1; `null` is a deletion.
    versions: watch::Sender<Vec<Value>>,
}

impl ApiServer {
    pub(super) fn new() -> Self {
        Self { versions: watch::Sender::new(Vec::new()) }
    }

    /// Deletes the existing Lease.
    pub(super) fn delete(&self) {
        self.versions.send_modify(|versions| versions.push(Value::Null));
    }

    /// Returns a client whose calls pass through `faults`, and a counter of its calls other than watches.
    pub(super) fn client(&self, faults: &Faults) -> (Client, Arc<AtomicUsize>) {
        let num_calls = Arc::new(AtomicUsize::new(0));
        let (server, counter) = (self.clone(), Arc::clone(&num_calls));
        let service = tower::service_fn(move |request: Request<Body>| {
            let (server, counter) = (server.clone(), Arc::clone(&counter));
            async move { server.respond(request, &counter).await }
        });
        (Client::new(faults.layer(service), "rl"), num_calls)
    }

    async fn respond(
        &self,
        request: Request<Body>,
        num_calls: &AtomicUsize,
    ) -> Result<Response<Body>, BoxError> {
        let (head, body) = request.into_parts();
        let sent: Value = serde_json::from_slice(&body.collect_bytes().await?).unwrap_or_default();
        let query = head.uri.query().unwrap_or_default();
        let (code, body) = if query.contains("watch=true") {
            (200, self.events_after(resource_version(query)).await)
        } else {
            num_calls.fetch_add(1, Ordering::SeqCst);
            let (code, answer) = self.answer(&head.method, head.uri.path(), sent);
            (code, serde_json::to_vec(&answer)?)
        };
        Ok(Response::builder().status(code).body(Body::from(body))?)
    }

    /// Waits for versions later than `version` and returns them as events of a watch. The watch ends after
    /// them, and the client opens another one.
    async fn events_after(&self, version: usize) -> Vec<u8> {
        let mut versions = self.versions.subscribe();
        // Never reached, because `self` owns the sender.
        let Ok(versions) = versions.wait_for(|versions| versions.len() > version).await else {
            return Vec::new();
        };
        let event = |idx: usize| {
            let (kind, mut object) = match &versions[idx] {
                Value::Null => ("DELETED", versions[idx - 1].clone()),
                lease => ("MODIFIED", lease.clone()),
            };
            object["metadata"]["resourceVersion"] = (idx + 1).to_string().into();
            json!({"type": kind, "object": object}).to_string() + "\n"
        };
        (version..versions.len()).map(event).collect::<String>().into_bytes()
    }

    fn answer(&self, method: &Method, path: &str, sent: Value) -> (u16, Value) {
        let current = self.versions.borrow().last().cloned().filter(|lease| !lease.is_null());
        match (method, current) {
            (&Method::GET, lease) if path.ends_with("/leases") => {
                let version = self.versions.borrow().len().to_string();
                let items = Vec::from_iter(lease);
                (200, json!({"kind": "LeaseList", "metadata": {"resourceVersion": version}, "items": items}))
            }
            (&Method::GET, Some(lease)) => (200, lease),
            (&Method::POST, None) => (201, self.store(sent)),
            (&Method::PUT, Some(lease)) if version(&lease) == version(&sent) => (200, self.store(sent)),
            (_, None) => (404, status(404)),
            (_, Some(_)) => (409, status(409)),
        }
    }

    fn store(&self, mut lease: Value) -> Value {
        self.versions.send_modify(|versions| {
            lease["metadata"]["resourceVersion"] = (versions.len() + 1).to_string().into();
            versions.push(lease.clone());
        });
        lease
    }
}

fn version(lease: &Value) -> &Value {
    &lease["metadata"]["resourceVersion"]
}

/// Returns the resource version after which the watch with this query continues.
fn resource_version(query: &str) -> usize {
    let mut parameters = query.split('&').filter_map(|one| one.strip_prefix("resourceVersion="));
    parameters.next().and_then(|version| version.parse().ok()).unwrap_or(0)
}
