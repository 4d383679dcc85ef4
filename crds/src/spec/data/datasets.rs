//! `spec.data.datasets` and `spec.data.streaming`: several data sets with weights, of files and of the hub.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::spec::HubSpec;

/// Data set to train or evaluate on. Exactly one of `files` and `hub` is the source of its rows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DatasetSpec {
    /// Files of the data set, in this order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(min = 1, max = 4096)))]
    pub files: Vec<String>,
    /// Data set of the Hugging Face hub, downloaded once and recorded by commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hub: Option<HubDatasetSpec>,
    /// Whether the data set is evaluated on instead of trained on.
    #[serde(default)]
    pub held_out: bool,
    /// Share of an epoch, relative to the sum of all weights. An epoch has as many rows as all data sets
    /// together; a data set is repeated, or continued in the next epoch, as its share requires. Either all
    /// data sets to train on have a weight or none has; without weights each row occurs once per epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1e-6, max = 1e6))]
    pub weight: Option<f64>,
    /// Column with the prompt; by default `data.promptKey`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub prompt_key: Option<String>,
    /// Column with the ground truth; by default `data.groundTruthKey`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub ground_truth_key: Option<String>,
    /// Data source of rows that name none, which selects reward functions; by default `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub data_source: Option<String>,
}

/// Data set of the Hugging Face hub: its JSONL, JSON or parquet files.
///
/// Files are found as the library `datasets` finds them: by the `configs` in the front matter of the
/// repository's README, and without them by their names (`data/train-00000-of-00002.parquet`, `test.jsonl`,
/// `train/a.jsonl`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HubDatasetSpec {
    /// Owner and name of the repository, such as `openai/gsm8k`.
    #[schemars(length(min = 1, max = 256))]
    pub repo: String,
    /// Branch, tag or commit; the commit to which it resolves is recorded with the run.
    #[serde(default = "HubDatasetSpec::default_revision")]
    #[schemars(length(min = 1, max = 256))]
    pub revision: String,
    /// URL of a mirror; by default that of the public hub, or `HF_ENDPOINT` where that is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 2048))]
    pub endpoint: Option<String>,
    /// Name of a configuration, such as `main`; by default the repository's default one, or its only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub config: Option<String>,
    /// Name of a split, such as `train` or `test`.
    #[serde(default = "HubDatasetSpec::default_split")]
    #[schemars(length(min = 1, max = 256))]
    pub split: String,
}

impl HubDatasetSpec {
    fn default_revision() -> String {
        "main".into()
    }
    fn default_split() -> String {
        "train".into()
    }

    /// Returns the location of the repository.
    pub fn repository(&self) -> HubSpec {
        let Self { repo, revision, endpoint, .. } = self.clone();
        HubSpec { repo, revision, endpoint }
    }
}

/// Streaming of rows during the training.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StreamingSpec {
    /// Number of rows in memory at a time, of each data set with a weight. Rows are shuffled within this
    /// block, and files within a pass; `data.shuffle: false` keeps the order of both.
    #[serde(default = "StreamingSpec::default_block_rows")]
    #[schemars(range(min = 1, max = 10000000))]
    pub block_rows: u32,
}

impl StreamingSpec {
    fn default_block_rows() -> u32 {
        4096
    }
}
