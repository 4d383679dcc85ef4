//! `spec.rewards`: how completions are judged.

mod sandbox;
mod servers;

pub use rlt_algorithms::reward::RewardKind;
use rlt_algorithms::reward::Settings;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::HubSpec;
pub use sandbox::*;
pub use servers::*;

/// Reward of a completion: the weighted sum of its functions, clipped and shaped by length.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RewardsSpec {
    /// Reward functions, whose weighted values are added. At least one, unless `algorithm.kind` samples no
    /// completions.
    #[schemars(
        length(max = 32),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub functions: Vec<RewardFunctionSpec>,
    /// Timeout in seconds of one of the trainer's own functions for one completion; a server has its own.
    #[schemars(range(min = 0.01, max = 86400.0))]
    pub timeout_seconds: f64,
    /// Timeout in seconds of servers and sandboxes for the rest of a batch, after its last completion was
    /// sampled; samples without a result then have the status `timeout`. Must be below
    /// `workers.peerTimeoutSeconds`.
    #[schemars(range(min = 0.01, max = 86400.0))]
    pub batch_timeout_seconds: f64,
    /// Handling of completions for which a function timed out (status `timeout`).
    pub on_timeout: RewardErrorPolicy,
    /// Handling of completions for which a function failed (status `infra`): it reported an error, or its
    /// server gave no usable answer.
    pub on_error: RewardErrorPolicy,
    /// Growing penalty on completions close to the length limit (<https://arxiv.org/abs/2503.14476>, section
    /// 3.4). The DAPO preset sets it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overlong: Option<OverlongRewardSpec>,
    /// Bounds of the sum, applied before the penalty on length.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip: Option<RewardClipSpec>,
}

impl Default for RewardsSpec {
    fn default() -> Self {
        Self {
            functions: Vec::new(),
            timeout_seconds: 10.0,
            batch_timeout_seconds: 600.0,
            on_timeout: RewardErrorPolicy::Mask,
            on_error: RewardErrorPolicy::Mask,
            overlong: None,
            clip: None,
        }
    }
}

/// Handling of a completion without a reward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RewardErrorPolicy {
    /// The completion is left out of the loss and of its group's statistics.
    #[default]
    Mask,
    /// The completion has reward 0.
    Zero,
}

/// Reward function with its weight and settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RewardFunctionSpec {
    /// Name of the function in metrics and in completions.jsonl; unique.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Kind of the reward function.
    pub kind: RewardKind,
    /// Factor of the function's value in the sum; negative to penalize.
    #[serde(default = "RewardFunctionSpec::default_weight")]
    #[schemars(range(min = -1e6, max = 1e6))]
    pub weight: f64,
    /// Values of `data_source` whose rows are judged; by default all rows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 256)))]
    pub data_sources: Vec<String>,
    /// Reward model, for `Model`. Exactly one of `path` and `hub` is its source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<RewardModelSpec>,
    /// HTTP server that judges, for `Server`, `OpenRlhf`, `Judge` and, without `wasm`, `Code`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<RewardServerSpec>,
    /// Execution of code, for `Code`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<CodeRewardSpec>,
    /// Language model that judges, for `Judge`: its message and the range of scores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub judge: Option<JudgeSpec>,
    /// WebAssembly module, for `Wasm`; Python interpreter, for `Python` and, without `server`, `Code`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wasm: Option<WasmSpec>,
    /// Python function, for `Python`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub python: Option<PythonRewardSpec>,
    /// Further settings of the function's kind.
    #[serde(flatten)]
    pub settings: Settings,
}

/// Classifier in the format of transformers' and TRL's reward models. With one label it gives a number for
/// prompt and completion, read at their last token (`LlamaForSequenceClassification` and its relatives); with
/// two labels for tokens (`LlamaForTokenClassification`) it is a process reward model, which judges each
/// step. It is sharded like the policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RewardModelSpec {
    /// Hugging Face folder (config.json, safetensors) on a mounted or local file system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub path: Option<String>,
    /// Model of the Hugging Face hub, downloaded once. A commit as its revision makes the run repeatable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hub: Option<HubSpec>,
    /// Input of the reward model: tokens or text.
    #[serde(default)]
    pub input: RewardModelInput,
    /// Steps of a process reward model: how completions are split into steps, and how the scores of steps
    /// become one reward.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<StepRewardSpec>,
}

/// Input of a reward model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RewardModelInput {
    /// Tokens of the policy; the model's vocabulary must be the policy's.
    #[default]
    Tokens,
    /// Text of prompt and completion, tokenized by the model's own tokenizer; chat messages are rendered by
    /// its own template. For a model with another vocabulary or template than the policy's.
    Text,
}

/// Aggregation of the scores of steps to one reward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum StepAggregation {
    /// Smallest score: a completion is as good as its worst step.
    #[default]
    Min,
    /// Score of the last step.
    Last,
    /// Mean of the scores.
    Mean,
    /// Product of the scores: the probability that all steps are right.
    Product,
}

/// Steps of a process reward model. The score of a step is the probability that it is right.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct StepRewardSpec {
    /// Text between steps, as in the model's training; by default a line break.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub separator: Option<String>,
    /// Aggregation of the scores of steps to one reward.
    pub aggregation: StepAggregation,
}

impl RewardFunctionSpec {
    /// Whether the setting or section `name` is given.
    pub(crate) fn has(&self, name: &str) -> bool {
        match name {
            "model" => self.model.is_some(),
            "server" => self.server.is_some(),
            "code" => self.code.is_some(),
            "judge" => self.judge.is_some(),
            "wasm" => self.wasm.is_some(),
            "python" => self.python.is_some(),
            setting => self.settings.get(setting).is_some(),
        }
    }

    fn default_weight() -> f64 {
        1.0
    }
}

/// Penalty on completions close to `rollout.maxCompletionTokens`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OverlongRewardSpec {
    /// Number of tokens before the limit over which the penalty grows linearly from 0.
    #[schemars(range(min = 1, max = 16777216))]
    pub buffer_tokens: u32,
    /// Penalty on a completion at the limit.
    #[serde(default = "OverlongRewardSpec::default_penalty_factor")]
    #[schemars(range(min = 0.0, max = 1e6))]
    pub penalty_factor: f64,
}

impl OverlongRewardSpec {
    fn default_penalty_factor() -> f64 {
        1.0
    }
}

/// Bounds of the summed reward.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RewardClipSpec {
    /// Lower bound of the reward.
    #[schemars(range(min = -1e9, max = 1e9))]
    pub min: f64,
    /// Upper bound of the reward.
    #[schemars(range(min = -1e9, max = 1e9))]
    pub max: f64,
}
