//! The operator against a real API server: what becomes of jobs, and what the operator says about it. Mostly
//! no node is there: the tests play the kubelet by writing what it would write into a pod's status.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that can not go on says where")]

mod admission;
mod axe;
mod end;
mod faults;
mod fields;
mod gangs;
mod kubelet;
mod lifecycle;
mod multikueue;
mod pods;
mod process;
mod queue;
mod scale;
#[path = "../../../crds/tests/fixtures/specifications.rs"]
mod specifications;
mod stage;
mod topology;
mod witness;

use rlt_cluster::{Options, Shared};
use stage::Stage;

static CLUSTER: Shared = Shared::new(|| Options::control_plane().with_audit_log());

/// A stage without nodes; `None` where the machine cannot run a cluster.
async fn set(purpose: &str) -> Option<Stage> {
    Some(Stage::on(CLUSTER.get()?, purpose).await)
}
