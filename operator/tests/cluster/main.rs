//! The operator against a real API server: the course of jobs, and their status. Most tests have no node and
//! play the kubelet by writing pod statuses.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test panics where it fails")]

mod admission;
mod crash_point;
mod end;
mod faults;
mod fields;
mod gangs;
mod history;
mod kubelet;
mod leadership;
mod lifecycle;
mod multikueue;
mod pods;
mod process;
mod queue;
mod scale;
#[path = "../../../crds/tests/fixtures/specifications.rs"]
mod specifications;
mod test_namespace;
mod topology;

use std::time::Duration;

use rlt_cluster::{Options, Shared};
use test_namespace::TestNamespace;

/// Longest time that a test waits for the API server or the operator. Nothing trains here.
const TIMEOUT: Duration = Duration::from_secs(300);

static CLUSTER: Shared = Shared::new(|| Options::control_plane().with_audit_log());

/// A test without nodes; `None` where the machine cannot run a cluster.
async fn set(purpose: &str) -> Option<TestNamespace> {
    Some(TestNamespace::on(CLUSTER.get()?, purpose).await)
}
