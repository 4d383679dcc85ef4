//! `spec.data`: the prompts and demonstrations to train and evaluate on.

mod datasets;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use datasets::{DatasetSpec, HubDatasetSpec, StreamingSpec};

/// The data sets. Exactly one of `task`, `train` and `datasets` says where the prompts come from.
///
/// Files are JSONL (`.jsonl`, `.json`) or parquet (`.parquet`) in verl's columns (`prompt`, a text or chat
/// messages; `data_source`; `reward_model.ground_truth`; `extra_info`) or TRL's (`prompt`, `completion`,
/// `messages`, `answer`, `solution`); for preferences in TRL's columns `prompt`, `chosen` and `rejected`, for
/// `KTO` `prompt`, `completion` and `label`. `rlctl data` shows rows as the trainer sees them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct DataSpec {
    /// A task whose problems are generated; needs no files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskSpec>,
    /// Files to train on, read in this order before shuffling.
    #[schemars(length(max = 256), inner(length(min = 1, max = 4096)))]
    pub train: Vec<String>,
    /// Files to evaluate on.
    #[schemars(length(max = 256), inner(length(min = 1, max = 4096)))]
    pub held_out: Vec<String>,
    /// Data sets of files or of the hub, with weights and columns of their own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub datasets: Vec<DatasetSpec>,
    /// Read rows to train on during the training, for data that does not fit into memory; by default all
    /// rows are read and checked before it. Held-out rows are always read before it. Needs
    /// `training.steps`: the number of rows is not known before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub streaming: Option<StreamingSpec>,
    /// The column with the prompt. A row without it has the conversation of `messagesKey` as its prompt, up
    /// to the assistant's last turn.
    #[schemars(length(min = 1, max = 256))]
    pub prompt_key: String,
    /// The column with a whole conversation, for supervised training: the assistant's turns are learned.
    #[schemars(length(min = 1, max = 256))]
    pub messages_key: String,
    /// The column with a prompt's images, for models with a vision tower: a list of paths, of objects with
    /// `bytes` or `path`, or one of them. Each stands where a message has `<image>` or a part of type
    /// image. A row without images is a text.
    #[schemars(length(min = 1, max = 256))]
    pub images_key: String,
    /// The column with the ground truth; a dot leads into an object. By default the first that a row has of
    /// `reward_model.ground_truth` (verl), `ground_truth`, `answer` and `solution` (TRL).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub ground_truth_key: Option<String>,
    /// The column with the data source, by which reward functions are chosen; a dot leads into an object.
    #[schemars(length(min = 1, max = 256))]
    pub data_source_key: String,
    /// A system message before every conversation that has none of its own. A prompt that is a text becomes
    /// the user's message behind it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 65536))]
    pub system_prompt: Option<String>,
    /// Variables for the chat template, such as Qwen3's `enable_thinking: false`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("type" = "object", "x-kubernetes-preserve-unknown-fields" = true))]
    pub template_variables: Option<Value>,
    /// Longest prompt in tokens, after the chat template. A completion of a data set may have
    /// `rollout.maxCompletionTokens`.
    #[schemars(range(min = 1, max = 16777216))]
    pub max_prompt_tokens: u32,
    /// What happens to a longer prompt.
    pub overlong_prompts: OverlongPrompts,
    /// Visit the training prompts in an order that is a function of `training.seed` and the epoch.
    pub shuffle: bool,
    /// Use only the first so many training prompts, of each entry of `datasets`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_train_prompts: Option<u64>,
    /// Use only the first so many held-out prompts, of each entry of `datasets`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_held_out_prompts: Option<u64>,
}

impl Default for DataSpec {
    fn default() -> Self {
        Self {
            task: None,
            train: Vec::new(),
            held_out: Vec::new(),
            datasets: Vec::new(),
            streaming: None,
            prompt_key: "prompt".into(),
            messages_key: "messages".into(),
            images_key: "images".into(),
            ground_truth_key: None,
            data_source_key: "data_source".into(),
            system_prompt: None,
            template_variables: None,
            max_prompt_tokens: 512,
            overlong_prompts: OverlongPrompts::Filter,
            shuffle: true,
            max_train_prompts: None,
            max_held_out_prompts: None,
        }
    }
}

/// What happens to a prompt longer than `maxPromptTokens`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OverlongPrompts {
    /// It is left out and counted.
    #[default]
    Filter,
    /// Its first tokens are cut off.
    TruncateLeft,
    /// Its last tokens are cut off.
    TruncateRight,
    /// The job stops and names the row.
    Error,
}

/// The generated tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TaskKind {
    /// Problems such as `12+7=` with the result as the ground truth.
    Arithmetic,
    /// Pictures of coloured squares with [`COUNTING_QUESTION`] and their number as the ground truth; for
    /// models with a vision tower.
    CountingPictures,
}

/// Question about the pictures of [`TaskKind::CountingPictures`].
pub const COUNTING_QUESTION: &str = "how many?";

/// An operator of the arithmetic task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum ArithmeticOperator {
    /// Addition.
    #[serde(rename = "+")]
    Add,
    /// Subtraction; results are never negative.
    #[serde(rename = "-")]
    Subtract,
    /// Multiplication.
    #[serde(rename = "*")]
    Multiply,
}

impl ArithmeticOperator {
    /// Symbol of the operator in manifests and problems.
    pub fn symbol(self) -> char {
        match self {
            Self::Add => '+',
            Self::Subtract => '-',
            Self::Multiply => '*',
        }
    }
}

/// A task whose problems are generated; training and held-out problems never overlap.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TaskSpec {
    /// Which task.
    pub kind: TaskKind,
    /// What the pictures of `CountingPictures` look like, and only theirs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pictures: Option<PicturesSpec>,
    /// Operators to draw from; this and the next three are of `Arithmetic`.
    #[serde(default = "TaskSpec::default_operators")]
    #[schemars(length(min = 1, max = 3))]
    pub operators: Vec<ArithmeticOperator>,
    /// Largest operand; the smallest is 0.
    #[serde(default = "TaskSpec::default_max_operand")]
    #[schemars(range(min = 1, max = 999999))]
    pub max_operand: u32,
    /// Write operands and results with leading zeros to equal widths, which small models learn sooner.
    #[serde(default)]
    pub zero_padded: bool,
    /// Write results from the lowest digit up, so that carries flow in writing order.
    #[serde(default)]
    pub reversed_answers: bool,
    /// Share of demonstrations that break off before the last digit, or of pictures show another number: a
    /// habit that only the reward unlearns.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 0.99))]
    pub demonstration_error_rate: f64,
    /// Number of training problems.
    #[serde(default = "TaskSpec::default_num_train")]
    #[schemars(range(min = 1, max = 10000000))]
    pub num_train: u32,
    /// Number of held-out problems.
    #[serde(default = "TaskSpec::default_num_held_out")]
    #[schemars(range(min = 0, max = 1000000))]
    pub num_held_out: u32,
}

/// Pictures of a grid of cells, some of which hold a coloured square.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PicturesSpec {
    /// Cells in a row, and rows.
    #[schemars(range(min = 1, max = 16))]
    pub cells: u32,
    /// Height and width of a cell in pixels.
    #[schemars(range(min = 2, max = 256))]
    pub cell_pixels: u32,
    /// The most squares of a picture; the fewest are 1, and each number is drawn equally often.
    #[schemars(range(min = 1, max = 256))]
    pub max_count: u32,
}

impl PicturesSpec {
    /// Height and width of a picture in pixels.
    pub(crate) fn side(&self) -> u32 {
        self.cells * self.cell_pixels
    }
}

impl Default for PicturesSpec {
    fn default() -> Self {
        Self { cells: 3, cell_pixels: 28, max_count: 9 }
    }
}

impl TaskSpec {
    fn default_operators() -> Vec<ArithmeticOperator> {
        vec![ArithmeticOperator::Add, ArithmeticOperator::Subtract]
    }
    fn default_max_operand() -> u32 {
        99
    }
    fn default_num_train() -> u32 {
        4096
    }
    fn default_num_held_out() -> u32 {
        256
    }
}

/// Source of a job's prompts; see [`DataSpec::source`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DataSource<'a> {
    /// Generated.
    Task(&'a TaskSpec),
    /// Read from files, here or on the hub; see [`DataSpec::sets`].
    Datasets,
}
