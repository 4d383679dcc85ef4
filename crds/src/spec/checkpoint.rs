//! `spec.checkpoint`: when the state is saved, how it is resumed, and what is exported at the end.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Checkpoints. The last step and a termination signal are always followed by one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CheckpointSpec {
    /// Steps between checkpoints; 0 for only the last one.
    #[schemars(range(min = 0, max = 100000000))]
    pub every_steps: u64,
    /// Complete checkpoints to keep; older ones are deleted.
    #[schemars(range(min = 1, max = 1000000))]
    pub keep: u32,
    /// Keep the checkpoint of the highest mean held-out reward, too, beside the newest `keep`: one is saved
    /// after each evaluation that is better than all before it. `rlctl export --step best` exports it.
    pub keep_best: bool,
    /// A checkpoint folder of another run to start from. A run that has checkpoints itself resumes from its
    /// newest complete one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub resume_from: Option<String>,
    /// Where complete checkpoints are copied to, beside the training: `s3://BUCKET/PREFIX`,
    /// `gs://BUCKET/PREFIX`, `az://CONTAINER/PREFIX` or `file:///FOLDER`. The prefix belongs to this run
    /// alone; as many copies are kept as `keep` says. A run resumes from the newest copy if its folder has
    /// nothing newer. Credentials, region and endpoint are read from the environment of the workers, by the
    /// stores' own names (`AWS_`, `GOOGLE_`, `AZURE_`).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub uri: Option<String>,
    /// The Hugging Face folder written at the end.
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

/// Numbers in which exported weights are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ExportDtype {
    /// As in the folder of the model; fp32 for a new model.
    #[default]
    Auto,
    /// 32 bits.
    Fp32,
    /// bfloat16.
    Bf16,
}

/// The Hugging Face folder written at the end; with LoRA also a PEFT adapter in its `adapter/`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ExportSpec {
    /// Whether it is written.
    pub enabled: bool,
    /// Merge the adapter into the exported weights; else only `adapter/` is written, and with a model that
    /// the run itself made also the weights below it, which are nowhere else.
    pub merge_lora: bool,
    /// Numbers in which weights are stored.
    pub dtype: ExportDtype,
}

impl Default for ExportSpec {
    fn default() -> Self {
        Self { enabled: true, merge_lora: true, dtype: ExportDtype::Auto }
    }
}
