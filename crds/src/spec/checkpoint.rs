//! `spec.checkpoint`: when the state is saved, how it is resumed, and what is exported at the end.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Checkpoints and the final export. The last step and a termination signal are always followed by a
/// checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CheckpointSpec {
    /// Number of steps between checkpoints; 0 saves only the last one.
    #[schemars(range(min = 0, max = 100000000))]
    pub every_steps: u64,
    /// Number of complete checkpoints to keep; older ones are deleted.
    #[schemars(range(min = 1, max = 1000000))]
    pub keep: u32,
    /// Whether the checkpoint with the highest mean held-out reward is kept, besides the newest `keep`: one
    /// is saved after each evaluation that is better than all before it. `rlctl export --step best` exports
    /// it.
    pub keep_best: bool,
    /// Checkpoint folder of another run to start from. A run that has checkpoints of its own resumes from its
    /// newest complete one instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub resume_from: Option<String>,
    /// Storage location to which complete checkpoints are copied while the training continues:
    /// `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`, `az://CONTAINER/PREFIX` or `file:///FOLDER`. The prefix
    /// belongs to this run alone; as many copies are kept as `keep` says. A run resumes from the newest copy
    /// if its folder has nothing newer. Credentials, region and endpoint are read from the environment of the
    /// workers, by the stores' own names (`AWS_`, `GOOGLE_`, `AZURE_`).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub uri: Option<String>,
    /// Hugging Face folder that is written at the end.
    pub export: ExportSpec,
}

impl Default for CheckpointSpec {
    fn default() -> Self {
        Self {
            every_steps: 20,
            keep: 3,
            keep_best: false,
            resume_from: None,
            uri: None,
            export: ExportSpec::default(),
        }
    }
}

/// Dtype of exported weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ExportDtype {
    /// Dtype of the model's folder; fp32 for a new model.
    #[default]
    Auto,
    /// 32-bit floating point.
    Fp32,
    /// 16-bit floating point (bfloat16).
    Bf16,
}

/// Hugging Face folder that is written at the end; with LoRA it has a PEFT adapter in `adapter/` too.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ExportSpec {
    /// Whether the folder is written.
    pub enabled: bool,
    /// Whether the adapter is merged into the exported weights. With false only `adapter/` is written, and
    /// for a model that the run itself created also the base weights, which exist nowhere else.
    pub merge_lora: bool,
    /// Dtype of the exported weights.
    pub dtype: ExportDtype,
}

impl Default for ExportSpec {
    fn default() -> Self {
        Self { enabled: true, merge_lora: true, dtype: ExportDtype::Auto }
    }
}
