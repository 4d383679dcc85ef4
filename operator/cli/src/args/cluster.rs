//! The arguments of commands that call a cluster.

use std::path::PathBuf;

use super::DocumentFormat;

/// Cluster that a command calls, and the namespace in it.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Cluster")]
pub(crate) struct ClusterArgs {
    /// Path of the kubeconfig; by default KUBECONFIG, ~/.kube/config, or a pod's own account.
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig; by default its current one.
    #[arg(long, value_name = "NAME")]
    pub(crate) context: Option<String>,
    /// Namespace of the jobs; by default the context's.
    #[arg(long, short, value_name = "NAME")]
    pub(crate) namespace: Option<String>,
}

/// Pod settings of a cluster's operator. With `--server` they are read from the cluster; the defaults here
/// are the chart's.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Installation")]
pub(crate) struct InstallationArgs {
    /// Image of the workers, for jobs that name none.
    #[arg(long, value_name = "IMAGE", default_value = "rlt.local/rlt-trainer:dev")]
    pub(crate) trainer_image: String,
    /// Image of workers with GPUs, for jobs that name none.
    #[arg(long, value_name = "IMAGE", default_value = "rlt.local/rlt-trainer:dev-cuda")]
    pub(crate) trainer_cuda_image: String,
    /// Name of the chart's release, and of its namespace.
    #[arg(long, value_name = "NAME", default_value = "rl-operator")]
    pub(crate) release: String,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
One row a job; with a single NAME a page about it. STATE is the first condition
that is true, as in kubectl get rltj.")]
pub(crate) struct StatusArgs {
    /// Names of the jobs; by default all of the namespace.
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Show jobs of all namespaces.
    #[arg(long, short = 'A', conflicts_with_all = ["namespace", "names"])]
    pub(crate) all_namespaces: bool,
    /// Print a row whenever a job has changed, until interrupted or, with names, until all have ended.
    #[arg(long, short, conflicts_with = "output")]
    pub(crate) watch: bool,
    /// Format of the output.
    #[arg(long, short, value_enum, default_value_t = DocumentFormat::Text)]
    pub(crate) output: DocumentFormat,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct WhyArgs {
    /// Name of a job, or folder of a run on this machine.
    #[arg(value_name = "NAME|RUN")]
    pub(crate) name: String,
    /// Format of the output.
    #[arg(long, short, value_enum, default_value_t = DocumentFormat::Text)]
    pub(crate) output: DocumentFormat,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Pods are replaced when an attempt is over, and their logs go with them; what a
worker said last stays in the job's status and is shown in their place.")]
pub(crate) struct LogsArgs {
    /// Name of the job.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Rank whose worker is shown; rank 0 leads.
    #[arg(long, short, value_name = "N", default_value_t = 0)]
    pub(crate) rank: u32,
    /// Number of the attempt, from 1; by default the last one.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) attempt: Option<u32>,
    /// Show the attempt before the last one.
    #[arg(long, short, conflicts_with_all = ["attempt", "follow"])]
    pub(crate) previous: bool,
    /// Follow the log, across restarts, until the job ends.
    #[arg(long, short, conflicts_with = "attempt")]
    pub(crate) follow: bool,
    /// Number of last lines to begin with; by default all.
    #[arg(long, value_name = "LINES", value_parser = clap::value_parser!(i64).range(0..))]
    pub(crate) tail: Option<i64>,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Kubernetes keeps Events for an hour; what decides about a job stays in its
status.")]
pub(crate) struct EventsArgs {
    /// Name of the job.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Format of the output.
    #[arg(long, short, value_enum, default_value_t = DocumentFormat::Text)]
    pub(crate) output: DocumentFormat,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
}
