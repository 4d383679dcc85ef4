//! The specification of a job as users write it: one file per section.
//!
//! A field without `Option` carries its default here, and the API server fills in the same one. A field with
//! `Option` has a default that depends on other fields; [`crate::resolved`] fills it in. No rules that span
//! fields live here (see `rules`), and nothing may be added that no code of the trainer or operator reads.

mod algorithm;
mod checkpoint;
mod data;
mod failure_policy;
mod families;
mod lora;
mod model;
mod module_pattern;
mod pod;
mod quantization;
mod rewards;
mod rollout;
mod run_policy;
mod tracking;
mod training;
mod workers;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use algorithm::*;
pub use checkpoint::*;
pub use data::*;
pub use failure_policy::*;
pub(crate) use families::model_families;
pub use lora::*;
pub use model::*;
pub use module_pattern::*;
pub use pod::*;
pub use quantization::*;
pub use rewards::*;
pub use rollout::*;
pub use run_policy::*;
pub use tracking::*;
pub use training::*;
pub use workers::*;

/// Specification of a job: what to train, on what, how, and where the results go.
#[cfg_attr(
    feature = "kube",
    derive(kube::CustomResource),
    kube(
        group = "rltraining.dev",
        version = "v1alpha1",
        kind = "RLTrainingJob",
        plural = "rltrainingjobs",
        namespaced,
        status = "crate::status::RLTrainingJobStatus",
        shortname = "rltj",
        scale(
            spec_replicas_path = ".spec.workers.count",
            status_replicas_path = ".status.replicas",
            label_selector_path = ".status.selector"
        ),
        category = "all"
    )
)]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RLTrainingJobSpec {
    /// Model to train: its weights, tokenizer, chat template and adapter.
    pub model: ModelSpec,
    /// Prompts and demonstrations to train and evaluate on.
    pub data: DataSpec,
    /// Reward functions, by which completions are judged.
    #[serde(default)]
    pub rewards: RewardsSpec,
    /// Learning algorithm: a preset by `kind`, each part of which can be overridden.
    pub algorithm: AlgorithmSpec,
    /// Sampling of completions.
    #[serde(default)]
    pub rollout: RolloutSpec,
    /// Batch sizes, optimizer, precision and length of the training.
    #[serde(default)]
    pub training: TrainingSpec,
    /// Checkpoints of the training: when they are saved, how a run resumes, and what is exported at the end.
    #[serde(default)]
    pub checkpoint: CheckpointSpec,
    /// Destinations of metrics.
    #[serde(default)]
    pub tracking: TrackingSpec,
    /// Workers of the training: number, parallelism, device, pods and storage.
    #[serde(default)]
    pub workers: WorkersSpec,
    /// Time limits, suspension, restarts and deletion of the job.
    #[serde(default)]
    pub run_policy: RunPolicySpec,
    /// Controller that reconciles the job, as a domain and a path, with the meaning of `spec.managedBy` of a
    /// batch Job. By default, and as `rltraining.dev/operator`, this operator. With
    /// `kueue.x-k8s.io/multikueue` this operator creates the Workload of the job's queue, and MultiKueue runs
    /// the job in another cluster and copies its status. With any other value this operator ignores the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub managed_by: Option<String>,
}
