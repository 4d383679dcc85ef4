//! Reads of objects by calls of this process, for tests that poll: each start of kubectl takes a tenth of a
//! second of a core, a call a millisecond.

use http::Request;
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

use super::{Cluster, ClusterError};

/// Reader of a cluster's objects, for tests that have no runtime.
pub struct Reader {
    runtime: Runtime,
    client: kube::Client,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Reader").finish_non_exhaustive()
    }
}

impl Cluster {
    /// Returns a reader that is the administrator.
    ///
    /// # Errors
    /// When no runtime can be started, or the kubeconfig is malformed.
    pub fn reader(&self) -> Result<Reader, ClusterError> {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(ClusterError::Runtime)?;
        let client = runtime.block_on(self.client())?;
        Ok(Reader { runtime, client })
    }
}

/// Returns the path of the RLTrainingJobs of a namespace.
fn jobs_path(namespace: &str) -> String {
    format!("/apis/rltraining.dev/v1alpha1/namespaces/{namespace}/rltrainingjobs")
}

impl Reader {
    /// Returns the object or list at a path of the API server, such as `/api/v1/namespaces/team/pods`.
    ///
    /// # Errors
    /// When the API server does not answer, or not with this object.
    ///
    /// # Panics
    /// When it is called in a runtime.
    pub fn get(&self, path: &str) -> kube::Result<Value> {
        let request = Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?;
        self.runtime.block_on(self.client.request(request))
    }

    /// Returns the RLTrainingJob of this name.
    ///
    /// # Errors
    /// When the API server does not answer, or there is no such job.
    pub fn job(&self, namespace: &str, name: &str) -> kube::Result<Value> {
        self.get(&format!("{}/{name}", jobs_path(namespace)))
    }

    /// Returns the list of all RLTrainingJobs of a namespace.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub fn jobs(&self, namespace: &str) -> kube::Result<Value> {
        self.get(&jobs_path(namespace))
    }
}
