//! `spec.rewards`: how completions are judged.

mod sandbox;
mod servers;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

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
    /// may take for all that is left of it; what is then missing has the status `timeout`. Must be below
    /// `workers.peerTimeoutSeconds`.
    #[schemars(range(min = 0.01, max = 86400.0))]
    pub batch_timeout_seconds: f64,
    /// What a completion counts for when a function ran out of time (status `timeout`).
    pub on_timeout: RewardErrorPolicy,
    /// What a completion counts for when a function failed (status `infra`): it reported an error, its server
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

/// What a completion without a verdict counts for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RewardErrorPolicy {
    /// The completion is left out of the loss and of its group's statistics.
    #[default]
    Mask,
    /// Its reward is 0.
    Zero,
}

/// The reward functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum RewardKind {
    /// 1 when the completion, trimmed, equals the ground truth.
    Exact,
    /// Share of positions at which the completion has the ground truth's character: partial credit beside
    /// `Exact`.
    MatchingCharacters,
    /// 1 when the number after the last `####` equals the ground truth (GSM8K, verl's strict form).
    Gsm8k,
    /// 1 when the last number anywhere equals the ground truth (GSM8K, verl's flexible form).
    Gsm8kFlexible,
    /// 1 when the last `\boxed{}` equals the ground truth as mathematics.
    Math,
    /// 1 when what `pattern` captures last (its group `answer`, else its first group, else the match) equals
    /// the ground truth.
    Regex,
    /// 1 when `pattern` matches the whole completion.
    Format,
    /// 1 when the completion is JSON that satisfies `schema`.
    JsonSchema,
    /// 0 up to `targetTokens`, then falling linearly to -1 at `rollout.maxCompletionTokens`.
    Length,
    /// What `model` says of prompt and completion: a trained reward model, any number.
    Model,
    /// What a program behind `server` says, over the trainer's own protocol of batches (docs/rewards.md).
    Server,
    /// What a reward server of OpenRLHF says: `POST` with `query`, `prompts` and `labels`, answered by
    /// `rewards`.
    OpenRlhf,
    /// The share of unit tests that the completion's code passes, run by a SandboxFusion at `server` (its
    /// `run_code`). The ground truth holds the tests: `inputs` and `outputs` as verl has them, or assertions.
    Code,
    /// What a WebAssembly module says, run in a sandbox without access to anything (docs/rewards.md).
    Wasm,
    /// What a language model behind an OpenAI-compatible `server` says, asked as `judge` says.
    Judge,
}

/// One reward function.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
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
    /// A regular expression, for `Regex` and `Format`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub pattern: Option<String>,
    /// A JSON schema, for `JsonSchema`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("type" = "object", "x-kubernetes-preserve-unknown-fields" = true))]
    pub schema: Option<Value>,
    /// Completion length in tokens up to which `Length` takes nothing away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 16777216))]
    pub target_tokens: Option<u32>,
    /// A reward model, for `Model`. Exactly one of `path` and `hub` says where it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<RewardModelSpec>,
    /// The HTTP server that judges, for `Server`, `OpenRlhf`, `Code` and `Judge`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<RewardServerSpec>,
    /// How code is run, for `Code`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<CodeRewardSpec>,
    /// How a language model is asked, for `Judge`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub judge: Option<JudgeSpec>,
    /// The module, for `Wasm`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wasm: Option<WasmSpec>,
}

/// A sequence classifier with one label, as transformers and TRL save reward models
/// (`LlamaForSequenceClassification` and its relatives): the number that it gives the last token of prompt
/// and completion. It reads the policy's tokens, so its vocabulary must be the policy's. Every worker holds
/// the whole of it beside the policy.
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
}

impl RewardFunctionSpec {
    fn default_weight() -> f64 {
        1.0
    }
}

/// The penalty on completions that come close to `rollout.maxCompletionTokens`.
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
