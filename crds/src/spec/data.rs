//! `spec.data`: the prompts and demonstrations to train and evaluate on.

mod datasets;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use datasets::{DatasetSpec, HubDatasetSpec, StreamingSpec};

/// Data sets of the job. Exactly one of `task`, `train` and `datasets` is the source of the prompts.
///
/// Files are JSONL (`.jsonl`, `.json`) or parquet (`.parquet`) with verl's columns (`prompt`, a text or chat
/// messages; `data_source`; `reward_model.ground_truth`; `extra_info`) or TRL's (`prompt`, `completion`,
/// `messages`, `answer`, `solution`); for preferences with TRL's columns `prompt`, `chosen` and `rejected`,
/// for `KTO` `prompt`, `completion` and `label`. `rlctl data` shows rows as the trainer sees them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct DataSpec {
    /// Task whose problems are generated; needs no files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskSpec>,
    /// Files to train on, read in this order before shuffling.
    #[schemars(length(max = 256), inner(length(min = 1, max = 4096)))]
    pub train: Vec<String>,
    /// Files to evaluate on.
    #[schemars(length(max = 256), inner(length(min = 1, max = 4096)))]
    pub held_out: Vec<String>,
    /// Data sets from files or from the hub, each with its own weight and columns.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub datasets: Vec<DatasetSpec>,
    /// Streaming of training rows during the training, for data that does not fit into memory. By default all
    /// rows are read and checked before the first step, as held-out rows always are. Needs `training.steps`,
    /// because the number of rows is not known in advance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub streaming: Option<StreamingSpec>,
    /// Column with the prompt. For a row without it, the prompt is the conversation of `messagesKey` up to
    /// the assistant's last turn.
    #[schemars(length(min = 1, max = 256))]
    pub prompt_key: String,
    /// Column with a full conversation, for supervised training (see `trainOn`).
    #[schemars(length(min = 1, max = 256))]
    pub messages_key: String,
    /// Column with a prompt's images, for models with a vision tower: a list of paths or of objects with
    /// `bytes` or `path`, or a single one. Each takes the position of an `<image>` or of a part of type image
    /// in a message. A row without images is text.
    #[schemars(length(min = 1, max = 256))]
    pub images_key: String,
    /// Further folders whose files rows may name as images, besides the data file's.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 4096)))]
    pub image_folders: Vec<String>,
    /// Column with the ground truth; a dot selects a field of an object. By default the first that a row has
    /// of `reward_model.ground_truth` (verl), `ground_truth`, `answer` and `solution` (TRL).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub ground_truth_key: Option<String>,
    /// Column with the data source, which selects reward functions; a dot selects a field of an object.
    #[schemars(length(min = 1, max = 256))]
    pub data_source_key: String,
    /// System message for every conversation that has none of its own. A text prompt becomes the user's
    /// message after it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 65536))]
    pub system_prompt: Option<String>,
    /// Variables for the chat template, such as Qwen3's `enable_thinking: false`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("type" = "object", "x-kubernetes-preserve-unknown-fields" = true))]
    pub template_variables: Option<Value>,
    /// Maximum length of a prompt in tokens, after the chat template. A completion of a data set may have
    /// `rollout.maxCompletionTokens`.
    #[schemars(range(min = 1, max = 16777216))]
    pub max_prompt_tokens: u32,
    /// Handling of prompts longer than `maxPromptTokens`.
    pub overlong_prompts: OverlongPrompts,
    /// Tokens that supervised training learns; by default `Assistant`.
    #[serde(skip_serializing_if = "TrainOn::is_default")]
    pub train_on: TrainOn,
    /// Whether training prompts are shuffled, in an order that is a function of `training.seed` and the
    /// epoch.
    pub shuffle: bool,
    /// Maximum number of training prompts, from the beginning of the files, or of each entry of `datasets`;
    /// by default all.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_train_prompts: Option<u64>,
    /// Maximum number of held-out prompts, from the beginning of the files, or of each entry of `datasets`;
    /// by default all.
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
            image_folders: Vec::new(),
            ground_truth_key: None,
            data_source_key: "data_source".into(),
            system_prompt: None,
            template_variables: None,
            max_prompt_tokens: 512,
            overlong_prompts: OverlongPrompts::Filter,
            train_on: TrainOn::Assistant,
            shuffle: true,
            max_train_prompts: None,
            max_held_out_prompts: None,
        }
    }
}

/// Handling of a prompt longer than `maxPromptTokens`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OverlongPrompts {
    /// The prompt is left out and counted.
    #[default]
    Filter,
    /// The first tokens of the prompt are cut off.
    TruncateLeft,
    /// The last tokens of the prompt are cut off.
    TruncateRight,
    /// The job ends with an error that names the row.
    Error,
}

/// Tokens of a conversation, or of a prompt with its completion, that supervised training learns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TrainOn {
    /// All turns of the assistant. If the chat template has `{% generation %}` tags, the text within them.
    #[default]
    Assistant,
    /// The last turn of the assistant.
    LastTurn,
    /// All tokens, prompts included.
    Everything,
}

impl TrainOn {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Kind of generated problems.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TaskKind {
    /// Problems such as `12+7=`, with the result as the ground truth.
    Arithmetic,
    /// Pictures of coloured squares with the question `how many?`, and their number as the ground truth; for
    /// models with a vision tower.
    CountingPictures,
}

/// Question about the pictures of [`TaskKind::CountingPictures`].
pub const COUNTING_QUESTION: &str = "how many?";

/// Operator of the arithmetic task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum ArithmeticOperator {
    /// Addition of two operands.
    #[serde(rename = "+")]
    Add,
    /// Subtraction; results are never negative.
    #[serde(rename = "-")]
    Subtract,
    /// Multiplication of two operands.
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

/// Task whose problems are generated; training and held-out problems never overlap.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TaskSpec {
    /// Kind of the problems.
    pub kind: TaskKind,
    /// Size and content of the pictures; only for `CountingPictures`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pictures: Option<PicturesSpec>,
    /// Operators to draw from, with equal probability; like the next three fields, only for `Arithmetic`.
    #[serde(default = "TaskSpec::default_operators")]
    #[schemars(length(min = 1, max = 3))]
    pub operators: Vec<ArithmeticOperator>,
    /// Largest operand; the smallest is 0.
    #[serde(default = "TaskSpec::default_max_operand")]
    #[schemars(range(min = 1, max = 999999))]
    pub max_operand: u32,
    /// Whether operands and results are padded with leading zeros to equal widths, which small models learn
    /// sooner.
    #[serde(default)]
    pub zero_padded: bool,
    /// Whether results are written from the lowest digit up, so that carries propagate in writing order.
    #[serde(default)]
    pub reversed_answers: bool,
    /// Fraction of demonstrations that break off before the last digit, or that give a wrong number of
    /// squares: a habit that only the reward unlearns.
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
    /// Number of cells per row, and of rows.
    #[schemars(range(min = 1, max = 16))]
    pub cells: u32,
    /// Height and width of a cell in pixels.
    #[schemars(range(min = 2, max = 256))]
    pub cell_pixels: u32,
    /// Maximum number of squares in a picture; the minimum is 1, and each number is equally likely.
    #[schemars(range(min = 1, max = 256))]
    pub max_count: u32,
}

impl PicturesSpec {
    /// Height and width of a picture in pixels.
    pub fn side(&self) -> u32 {
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
    /// Prompts are generated.
    Task(&'a TaskSpec),
    /// Prompts are read from files, here or on the hub; see [`DataSpec::sets`].
    Datasets,
}
