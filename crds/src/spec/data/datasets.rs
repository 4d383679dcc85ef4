//! `spec.data.datasets` and `spec.data.streaming`: several data sets with weights, of files and of the hub.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::spec::HubSpec;

/// A data set. Exactly one of `files` and `hub` says where its rows come from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DatasetSpec {
    /// Its files, in this order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(min = 1, max = 4096)))]
    pub files: Vec<String>,
    /// A data set of the Hugging Face hub, downloaded once and recorded by commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hub: Option<HubDatasetSpec>,
    /// Evaluate on it instead of training on it.
    #[serde(default)]
    pub held_out: bool,
    /// Its share of an epoch, divided by the sum of all weights. An epoch has as many rows as all data sets
    /// together; a data set is repeated, or continued in the next epoch, as its share demands. Either all
    /// data sets to train on have a weight or none has: each row comes once in an epoch then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1e-6, max = 1e6))]
    pub weight: Option<f64>,
    /// The column with the prompt, where it is not `data.promptKey`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub prompt_key: Option<String>,
    /// The column with the ground truth, where it is not `data.groundTruthKey`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub ground_truth_key: Option<String>,
    /// The data source of rows that name none, by which reward functions are chosen; by default `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub data_source: Option<String>,
}

/// A data set of the Hugging Face hub: its JSONL, JSON or parquet files.
///
/// Files are found as the library `datasets` finds them: by the `configs` at the head of the repository's
/// README, and without them by their names (`data/train-00000-of-00002.parquet`, `test.jsonl`,
/// `train/a.jsonl`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HubDatasetSpec {
    /// Owner and name, such as `openai/gsm8k`.
    #[schemars(length(min = 1, max = 256))]
    pub repo: String,
    /// Branch, tag or commit; the commit it resolves to is recorded with the run.
    #[serde(default = "HubDatasetSpec::default_revision")]
    #[schemars(length(min = 1, max = 256))]
    pub revision: String,
    /// Address of a mirror; by default the public hub, or `HF_ENDPOINT` where that is set.
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

/// How rows are read during the training.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StreamingSpec {
    /// Rows that are held in memory at a time, of each data set with a weight. They are shuffled among each
    /// other, and so are the files; `data.shuffle: false` keeps the order of both.
    #[serde(default = "StreamingSpec::default_block_rows")]
    #[schemars(range(min = 1, max = 10000000))]
    pub block_rows: u32,
}

impl StreamingSpec {
    fn default_block_rows() -> u32 {
        4096
    }
}
