//! The operator's command line: what the cluster decides. What a single job needs is in its manifest.

use clap::{Parser, ValueEnum};

use crate::process::ProcessArgs;

/// Runs RLTrainingJob resources: starts their workers, watches over them and reports.
#[derive(Clone, Debug, Parser)]
#[command(name = "rlt-operator", version, about)]
pub struct Args {
    /// Namespaces to watch, separated by commas; by default all.
    #[arg(long, env = "RLT_NAMESPACES", value_delimiter = ',', value_name = "NAMES")]
    pub namespaces: Vec<String>,
    /// The image of the workers, where a job names none.
    #[arg(long, env = "RLT_TRAINER_IMAGE", value_name = "IMAGE")]
    pub trainer_image: String,
    /// The image of workers with GPUs, where a job names none; by default the same.
    #[arg(long, env = "RLT_TRAINER_CUDA_IMAGE", value_name = "IMAGE")]
    pub trainer_cuda_image: Option<String>,
    /// When those images are pulled.
    #[arg(
        long,
        env = "RLT_TRAINER_IMAGE_PULL_POLICY",
        value_name = "POLICY",
        default_value = "IfNotPresent"
    )]
    pub trainer_image_pull_policy: PullPolicy,
    /// Jobs that are reconciled at the same time; most of them wait for the rate limit.
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u16).range(1..))]
    pub concurrency: u16,
    /// The identity of the process.
    #[command(flatten)]
    pub process: ProcessArgs,
}

/// When an image is pulled, in Kubernetes' own words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "PascalCase")]
pub enum PullPolicy {
    /// Whenever a container starts.
    Always,
    /// When the node does not have it.
    IfNotPresent,
    /// Never: it was brought to the node before.
    Never,
}

impl PullPolicy {
    /// The word in a container's `imagePullPolicy`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::IfNotPresent => "IfNotPresent",
            Self::Never => "Never",
        }
    }
}
