//! A real Kubernetes for tests: etcd, API server, controller manager and scheduler, built from source by Go
//! and started in a second or two, in a network namespace of their own. There is no product code here.
//!
//! ```no_run
//! use rlt_cluster::{Options, Shared};
//!
//! static CLUSTER: Shared = Shared::new(Options::control_plane);       // one for all tests of the file
//!
//! # async fn a_test_in_a_namespace_of_its_own() -> Result<(), Box<dyn std::error::Error>> {
//! let Some(cluster) = CLUSTER.get() else { return Ok(()) };           // says why; under CI it fails instead
//! let namespace = cluster.namespace("gang").await?;                   // with its own service account
//! let admin: kube::Client = cluster.client().await?;                  // may do everything
//! let operator = cluster.client_of_service_account(&namespace, "rlt-operator").await?; // in its roles
//! cluster.kubectl().args(["apply", "-f", "crds/manifests"]).status()?;
//! # Ok(()) }
//! ```
//!
//! The test process is a machine on the cluster's network: it reaches the API server, pods and services by
//! their addresses, and is reached at [`Cluster::host_address`]. [`Options`] say what to start, [`FakeNodes`]
//! how pods on fake nodes end, [`Faults`] which calls fail. [`own_cluster`] is for a test that breaks its
//! cluster.
//!
//! A cluster ends with its owner. A janitor process waits on a pipe that only the owner holds open, and
//! sweeps when it ends, also after SIGKILL; the next start of a cluster sweeps leftovers of a killed janitor.

mod audit;
mod cluster;
mod control_plane;
mod fake_nodes;
mod fault_proxy;
mod faults;
mod installed;
mod kubeconfig;
mod network;
mod node;
mod objects;
mod oci;
mod options;
mod process;
mod program;
mod requirements;
mod shared;
mod slot;

pub use audit::{Call, CallLog};
pub use cluster::{Cluster, ClusterError, Reader};
pub use control_plane::ControlPlaneError;
pub use fake_nodes::FakeNodes;
pub use fault_proxy::FaultProxy;
pub use faults::{Fault, Faults};
use installed::{argo_cd, jobset, kueue, minio};
pub use jobset::JobSet;
pub use kueue::KueueError;
pub use minio::{Minio, MinioError};
pub use network::NetworkError;
pub use node::{NodeError, PROBE_IMAGE};
pub use objects::ObjectsError;
pub use options::Options;
pub use process::ProcessError;
pub use program::ProgramError;
pub use requirements::{build_programs, conditions, helm, kstatus, network_policy, olm_bundle, pod_security};
pub use rlt_skipped::HeldPort;
pub use shared::{Shared, can_run, own_cluster};
pub use slot::{ROOT, SlotError, sweep};
