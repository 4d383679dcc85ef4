//! The client of a cluster: made from a kubeconfig, with the few calls that commands need, and their errors.
//! Commands interpret the answers.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use rlt_objects::job::Job;
use rlt_objects::labels;
use rlt_objects::seen::SeenPod;

use crate::args::ClusterArgs;

/// Timeout of opening a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Number of objects per page of a list.
const PAGE_SIZE: u32 = 500;
/// Beginning of the API server's message for a missing job; any other 404 means that the kind is missing.
const NO_SUCH_JOB: &str = "rltrainingjobs.rltraining.dev \"";

/// A failed call of a cluster.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClusterError {
    #[error("start a runtime for the cluster's client")]
    Runtime(#[source] std::io::Error),
    #[error(
        "find a cluster: {problem}; name a kubeconfig with --kubeconfig or KUBECONFIG, its context with --context"
    )]
    NoCluster { problem: String },
    #[error("prepare the connection to {server}: {problem}")]
    Client { server: String, problem: String },
    #[error("reach the API server {server}: {problem}")]
    Unreachable { server: String, problem: String },
    #[error(
        "{act}: this cluster knows no RLTrainingJob; install the operator with \
         `helm upgrade --install rl-operator charts/rl-operator --namespace rl-operator --create-namespace`"
    )]
    NoDefinition { act: String },
    #[error("{act}: there is no job `{name}` in namespace `{namespace}`")]
    NoJob { act: String, name: String, namespace: String },
    #[error("{act}: not allowed: {message}")]
    Forbidden { act: String, message: String },
    #[error("{act}: {message}")]
    Call { act: String, message: String },
}

/// A connection to a cluster, with the permissions of the kubeconfig's user.
#[derive(Clone)]
pub(crate) struct Connection {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    server: String,
}

/// Runs a future that calls a cluster to completion.
pub(crate) fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(ClusterError::Runtime)?.block_on(work)
}

impl Connection {
    /// Finds the cluster and prepares the client; makes no call yet.
    pub(crate) async fn open(args: &ClusterArgs) -> Result<Self, ClusterError> {
        let mut config = config(args).await?;
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        config.default_retry = false;
        let server = config.cluster_url.to_string().trim_end_matches('/').to_owned();
        let namespace = args.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config)
            .map_err(|error| ClusterError::Client { server: server.clone(), problem: chain(&error) })?;
        Ok(Self { client, namespace, server })
    }

    /// Reads one job.
    pub(crate) async fn job(&self, name: &str) -> Result<Job, ClusterError> {
        let act = format!("read job `{name}`");
        self.jobs_api(false).get(name).await.map_err(|error| self.explain(act, name, error))
    }

    /// Lists the jobs of the namespace, or of all namespaces, sorted by namespace and name.
    pub(crate) async fn jobs(&self, everywhere: bool) -> Result<Vec<Job>, ClusterError> {
        let mut jobs = self.list(&self.jobs_api(everywhere), "list jobs", ListParams::default()).await?;
        jobs.sort_by(|a, b| (a.namespace(), a.name()).cmp(&(b.namespace(), b.name())));
        Ok(jobs)
    }

    /// Returns the API of jobs in the namespace, or in all namespaces.
    pub(crate) fn jobs_api(&self, everywhere: bool) -> Api<Job> {
        if everywhere {
            Api::all(self.client.clone())
        } else {
            Api::namespaced(self.client.clone(), &self.namespace)
        }
    }

    /// Lists the pods of a job, of any attempt.
    pub(crate) async fn pods(&self, job: &Job) -> Result<Vec<SeenPod>, ClusterError> {
        let of_job = ListParams::default().labels(&format!("{}={}", labels::JOB_UID, job.uid()));
        let pods = Api::namespaced(self.client.clone(), &self.namespace);
        self.list(&pods, "list the job's pods", of_job).await
    }

    pub(crate) fn pods_api(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Lists the Events of the namespace.
    pub(crate) async fn events(&self) -> Result<Vec<Event>, ClusterError> {
        self.list(
            &Api::namespaced(self.client.clone(), &self.namespace),
            "list Events",
            ListParams::default(),
        )
        .await
    }

    async fn list<K>(&self, api: &Api<K>, act: &str, params: ListParams) -> Result<Vec<K>, ClusterError>
    where
        K: Clone + serde::de::DeserializeOwned + std::fmt::Debug,
    {
        let mut params = params.limit(PAGE_SIZE);
        let mut items = Vec::new();
        loop {
            let page = api.list(&params).await.map_err(|error| self.explain(act.into(), "", error))?;
            items.extend(page.items);
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params.continue_token = Some(token),
                None => return Ok(items),
            }
        }
    }

    /// Converts a failed call to an error with a hint for the user.
    pub(crate) fn explain(&self, act: String, name: &str, error: kube::Error) -> ClusterError {
        match error {
            kube::Error::Api(status) if status.code == 404 && status.message.starts_with(NO_SUCH_JOB) => {
                ClusterError::NoJob { act, name: name.to_owned(), namespace: self.namespace.clone() }
            }
            kube::Error::Api(status) if status.code == 404 => ClusterError::NoDefinition { act },
            kube::Error::Api(status) if matches!(status.code, 401 | 403) => {
                ClusterError::Forbidden { act, message: status.message.clone() }
            }
            kube::Error::Api(status) => ClusterError::Call { act, message: status.message.clone() },
            error @ (kube::Error::Service(_) | kube::Error::HyperError(_)) => {
                ClusterError::Unreachable { server: self.server.clone(), problem: root(&error) }
            }
            error => ClusterError::Call { act, message: chain(&error) },
        }
    }
}

async fn config(args: &ClusterArgs) -> Result<Config, ClusterError> {
    let options = KubeConfigOptions { context: args.context.clone(), ..KubeConfigOptions::default() };
    let is_named = args.kubeconfig.is_some() || args.context.is_some();
    let from_file = match &args.kubeconfig {
        Some(path) => match Kubeconfig::read_from(path) {
            Ok(kubeconfig) => Config::from_custom_kubeconfig(kubeconfig, &options).await,
            Err(error) => Err(error),
        },
        None => Config::from_kubeconfig(&options).await,
    };
    match from_file {
        Ok(config) => Ok(config),
        // Without a kubeconfig or context from the user, this process may run in a pod.
        Err(error) => match Config::incluster() {
            Ok(config) if !is_named => Ok(config),
            _ => Err(ClusterError::NoCluster { problem: error.to_string() }),
        },
    }
}

/// Returns the innermost cause, the only specific one, such as `connection refused`.
fn root(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), root)
}

/// Joins all causes that add something to the text before them.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        let said = source.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = source.source();
    }
    text
}
