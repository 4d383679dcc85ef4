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

/// The reward of a completion: the weighted sum of its functions, shaped and clipped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RewardsSpec {
    /// The functions whose weighted values are added. At least one, unless `algorithm.kind` is `SFT`.
    #[schemars(
        length(max = 32),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub functions: Vec<RewardFunctionSpec>,
    /// Longest time in seconds that one function of the trainer's own may take for one completion; a server
    /// has its own.
    #[schemars(range(min = 0.01, max = 86400.0))]
    pub timeout_seconds: f64,
    /// Longest time in seconds, after the last completion of a batch was sampled, that servers and sandboxes
    /// may take for the rest of it; samples without a verdict then have the status `timeout`. Must be below
    /// `workers.peerTimeoutSeconds`.
    #[schemars(range(min = 0.01, max = 86400.0))]
    pub batch_timeout_seconds: f64,
    /// How a completion counts if a function timed out (status `timeout`).
    pub on_timeout: RewardErrorPolicy,
    /// How a completion counts if a function failed (status `infra`): it reported an error, or its server
    /// gave no usable answer.
    pub on_error: RewardErrorPolicy,
    /// A growing penalty on completions close to the limit (<https://arxiv.org/abs/2503.14476>, section 3.4).
    /// The DAPO preset sets it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overlong: Option<OverlongRewardSpec>,
    /// Bounds on the sum, applied before the penalty on length.
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

/// How a completion without a verdict counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RewardErrorPolicy {
    /// The completion is left out of the loss and of its group's statistics.
    #[default]
    Mask,
    /// Its reward is 0.
    Zero,
}

/// One reward function.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RewardFunctionSpec {
    /// Its name in metrics and in completions.jsonl; unique.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Which function.
    pub kind: RewardKind,
    /// Factor of its value in the sum; negative to penalise.
    #[serde(default = "RewardFunctionSpec::default_weight")]
    #[schemars(range(min = -1e6, max = 1e6))]
    pub weight: f64,
    /// Judge only rows with one of these values of `data_source`; by default all rows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 256)))]
    pub data_sources: Vec<String>,
    /// A reward model, for `Model`. Exactly one of `path` and `hub` says where it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<RewardModelSpec>,
    /// The HTTP server that judges, for `Server`, `OpenRlhf`, `Judge` and, where it has no `wasm`, `Code`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<RewardServerSpec>,
    /// How code is run, for `Code`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<CodeRewardSpec>,
    /// How a language model is asked, for `Judge`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub judge: Option<JudgeSpec>,
    /// The module, for `Wasm`; the interpreter, for `Python` and, where it has no `server`, `Code`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wasm: Option<WasmSpec>,
    /// The function, for `Python`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub python: Option<PythonRewardSpec>,
    /// Further settings of its kind.
    #[serde(flatten)]
    pub settings: Settings,
}

/// A classifier as transformers and TRL save reward models: with one label a number for prompt and
/// completion, read at their last token (`LlamaForSequenceClassification` and its relatives); with two labels
/// for tokens (`LlamaForTokenClassification`) a process reward model, which judges each step. It is sharded
/// like the policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RewardModelSpec {
    /// A Hugging Face folder (config.json, safetensors) on a mounted or local file system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub path: Option<String>,
    /// A model of the Hugging Face hub, downloaded once. A commit as its revision makes the run repeatable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hub: Option<HubSpec>,
    /// Its input.
    #[serde(default)]
    pub input: RewardModelInput,
    /// For a process reward model: how completions are split into steps, and how the scores of steps become
    /// one reward.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<StepRewardSpec>,
}

/// The input of a reward model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RewardModelInput {
    /// The policy's tokens; its vocabulary must be the policy's.
    #[default]
    Tokens,
    /// The text of prompt and completion, tokenized by its own tokenizer; chat messages are rendered by its
    /// own template. For a model of another vocabulary or template than the policy's.
    Text,
}

/// How verdicts on steps become one reward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum StepAggregation {
    /// The smallest: a completion is as good as its worst step.
    #[default]
    Min,
    /// That of the last step.
    Last,
    /// Their mean.
    Mean,
    /// Their product: the probability that all steps are right.
    Product,
}

/// How a process reward model judges a completion. The verdict on a step is the probability that it is right.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct StepRewardSpec {
    /// The text between steps, as in the model's training; by default a line break.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub separator: Option<String>,
    /// How verdicts on steps become one reward.
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

/// The penalty on completions close to `rollout.maxCompletionTokens`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OverlongRewardSpec {
    /// Number of tokens before the limit over which the penalty grows from 0.
    #[schemars(range(min = 1, max = 16777216))]
    pub buffer_tokens: u32,
    /// The penalty at the limit.
    #[serde(default = "OverlongRewardSpec::default_penalty_factor")]
    #[schemars(range(min = 0.0, max = 1e6))]
    pub penalty_factor: f64,
}

impl OverlongRewardSpec {
    fn default_penalty_factor() -> f64 {
        1.0
    }
}

/// Bounds on the summed reward.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RewardClipSpec {
    /// Smallest reward.
    #[schemars(range(min = -1e9, max = 1e9))]
    pub min: f64,
    /// Largest reward.
    #[schemars(range(min = -1e9, max = 1e9))]
    pub max: f64,
}
