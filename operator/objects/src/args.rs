//! The operator's command line: the settings of a cluster. Settings of a single job are in its manifest.

mod process;

use clap::{Parser, ValueEnum};
use rlt_api::{Defaults, Problem};

use crate::node_signals::{
    ConditionSignals, DEFAULT_CONDITIONS, DEFAULT_TERMINATION_TAINTS, NodeSignals, OnNodeProblem,
};
use crate::pod_settings::PodSettings;
use crate::privileges::Privileges;
pub use process::ProcessArgs;

/// The port of the Service through which ranks report.
pub const CHANNEL_PORT: u16 = 9443;

/// Run RLTrainingJob resources: start their workers, watch over them and report.
#[derive(Clone, Debug, Parser)]
#[command(name = "rlt-operator", version, about)]
pub struct Args {
    /// Namespaces to watch, separated by commas; by default all.
    #[arg(long, env = "RLT_NAMESPACES", value_delimiter = ',', value_name = "NAMES")]
    pub namespaces: Vec<String>,
    /// Image of the workers, for jobs that name none.
    #[arg(long, env = "RLT_TRAINER_IMAGE", value_name = "IMAGE")]
    pub trainer_image: String,
    /// Image of workers with GPUs, for jobs that name none; by default the same.
    #[arg(long, env = "RLT_TRAINER_CUDA_IMAGE", value_name = "IMAGE")]
    pub trainer_cuda_image: Option<String>,
    /// Pull policy of those images.
    #[arg(
        long,
        env = "RLT_TRAINER_IMAGE_PULL_POLICY",
        value_name = "POLICY",
        default_value = "IfNotPresent"
    )]
    pub trainer_image_pull_policy: PullPolicy,
    /// Privileges beyond Pod Security's level `restricted` that pods of jobs may have, as YAML; by default
    /// none.
    #[arg(long, env = "RLT_POD_PRIVILEGES", value_name = "YAML", value_parser = privileges)]
    pub pod_privileges: Option<Privileges>,
    /// Defaults for the pods of all jobs: YAML with a part of `spec.workers`.
    #[arg(long, env = "RLT_POD_DEFAULTS", value_name = "YAML", value_parser = defaults)]
    pub pod_defaults: Option<Defaults>,
    /// Maximum number of jobs that are reconciled at the same time, at least 1; most wait for the rate limit.
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u16).range(1..))]
    pub concurrency: u16,
    /// Node conditions that report a problem, separated by commas: TYPE, or TYPE=STATUS where the status is
    /// not True. An empty text stands for none.
    #[arg(long, env = "RLT_NODE_PROBLEMS", value_name = "CONDITIONS", default_value = DEFAULT_CONDITIONS)]
    pub node_problems: ConditionSignals,
    /// Action for workers on a node that gets such a condition.
    #[arg(long, env = "RLT_ON_NODE_PROBLEM", value_name = "ACTION", default_value = "Restart")]
    pub on_node_problem: OnNodeProblem,
    /// Taints that announce a node's termination, separated by commas; `*` at the end matches any suffix. An
    /// empty text stands for none.
    #[arg(long, env = "RLT_TERMINATION_TAINTS", value_name = "KEYS", default_value = DEFAULT_TERMINATION_TAINTS)]
    pub termination_taints: String,
    /// Identity of the process, its addresses and its rate limit.
    #[command(flatten)]
    pub process: ProcessArgs,
}

impl Args {
    /// Returns the conditions and taints that mark a node as impaired, and the action on its workers.
    pub fn node_signals(&self) -> NodeSignals {
        let taints = self.termination_taints.split(',').map(str::trim).filter(|key| !key.is_empty());
        NodeSignals {
            conditions: self.node_problems.0.clone(),
            termination_taints: taints.map(str::to_owned).collect(),
            on_problem: self.on_node_problem,
        }
    }

    /// Returns the cluster's settings for the pods of all jobs.
    pub fn pods(&self) -> PodSettings {
        PodSettings {
            privileges: self.pod_privileges.clone().unwrap_or_default(),
            defaults: self.pod_defaults.clone().unwrap_or_default(),
        }
    }
}

fn privileges(yaml: &str) -> Result<Privileges, String> {
    rlt_api::read_yaml(yaml).map_err(|error| error.to_string())
}

fn defaults(yaml: &str) -> Result<Defaults, String> {
    let in_lines = |problems: Vec<Problem>| problems.iter().map(Problem::to_string).collect::<Vec<_>>();
    Defaults::parse(yaml).map_err(|problems| in_lines(problems).join("\n"))
}

/// Pull policy of an image, in Kubernetes' own words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "PascalCase")]
pub enum PullPolicy {
    /// The image is pulled whenever a container starts.
    Always,
    /// The image is pulled if the node does not have it.
    IfNotPresent,
    /// The image is never pulled: the node must have it.
    Never,
}

impl PullPolicy {
    /// Name of the policy in a container's `imagePullPolicy`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::IfNotPresent => "IfNotPresent",
            Self::Never => "Never",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signals(more: &[&str]) -> NodeSignals {
        let args = ["rlt-operator", "--trainer-image", "i"].iter().chain(more);
        Args::try_parse_from(args).unwrap().node_signals()
    }

    #[test]
    fn the_charts_node_signals_are_the_operators_defaults_and_lists_can_be_empty() {
        let values = include_str!("../../../charts/rl-operator/values.yaml");
        let values: serde_json::Value = serde_saphyr::from_str(values).unwrap();
        let list = |name: &str| {
            let items = values["nodes"][name].as_array().unwrap().iter();
            items.map(|item| item.as_str().unwrap()).collect::<Vec<_>>().join(",")
        };
        let (problems, taints) = (list("problems"), list("terminationTaints"));
        let on_problem = values["nodes"]["onProblem"].as_str().unwrap();
        let of_chart = signals(&[
            "--node-problems",
            &problems,
            "--termination-taints",
            &taints,
            "--on-node-problem",
            on_problem,
        ]);
        assert_eq!(of_chart, signals(&[]));
        let none = signals(&["--node-problems", "", "--termination-taints", ""]);
        assert_eq!(none, NodeSignals::default());
    }
}
