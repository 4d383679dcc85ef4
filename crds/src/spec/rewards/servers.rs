//! Reward functions behind HTTP servers: how servers are reached, code is run and language models are asked.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An HTTP server. Requests that fail, time out or are answered by half (connection lost, status 408, 425,
/// 429 or 5xx, an answer that cannot be read) are repeated; redirects are not followed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RewardServerSpec {
    /// The address that is sent to, `http://` or `https://`, with its path.
    #[schemars(length(min = 1, max = 2048))]
    pub url: String,
    /// Headers of every request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub headers: Vec<HeaderSpec>,
    /// A PEM file with authorities to trust beside the system's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub ca_file: Option<String>,
    /// Longest time in seconds of one request, from its begin to the last byte of its answer. Time in the
    /// queue does not count.
    #[serde(default = "RewardServerSpec::default_timeout_seconds")]
    #[schemars(range(min = 0.01, max = 3600.0))]
    pub timeout_seconds: f64,
    /// How often a request is repeated, with growing pauses of up to 5 s.
    #[serde(default = "RewardServerSpec::default_retries")]
    #[schemars(range(min = 0, max = 20))]
    pub retries: u32,
    /// Requests at the same time, of each rank.
    #[serde(default = "RewardServerSpec::default_max_concurrent")]
    #[schemars(range(min = 1, max = 1024))]
    pub max_concurrent: u32,
    /// Samples in one request, for `Server` and `OpenRlhf`; a request leaves as soon as it is full.
    #[serde(default = "RewardServerSpec::default_max_batch")]
    #[schemars(range(min = 1, max = 4096))]
    pub max_batch: u32,
    /// Longest answer in bytes; a longer one is an error.
    #[serde(default = "RewardServerSpec::default_max_response_bytes")]
    #[schemars(range(min = 1024, max = 1073741824))]
    pub max_response_bytes: u64,
}

impl RewardServerSpec {
    fn default_timeout_seconds() -> f64 {
        30.0
    }
    fn default_retries() -> u32 {
        3
    }
    fn default_max_concurrent() -> u32 {
        16
    }
    fn default_max_batch() -> u32 {
        16
    }
    fn default_max_response_bytes() -> u64 {
        16 << 20
    }
}

/// A header of every request. Exactly one of `value` and `env` is given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HeaderSpec {
    /// Its name.
    #[schemars(length(min = 1, max = 256))]
    pub name: String,
    /// Its value in plain text; a secret value goes into `env`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub value: Option<String>,
    /// The environment variable that holds its value, such as `Bearer ...` whole; `workers.env` takes it from
    /// a Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub env: Option<String>,
}

/// How the code of a completion is run: its last fenced block, or all of it where it has none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CodeRewardSpec {
    /// The language, by SandboxFusion's name. Assertions, tests that call a function (`fn_name`) and the
    /// sandbox need `python`.
    #[schemars(length(min = 1, max = 64))]
    pub language: String,
    /// Longest time in seconds to compile, and to run, one test. In the sandbox `wasm.timeoutSeconds` holds,
    /// too.
    #[schemars(range(min = 1, max = 3600))]
    pub run_seconds: u32,
    /// Memory of one test, in MiB. In the sandbox `wasm.memoryMib` holds, too.
    #[schemars(range(min = 16, max = 1048576))]
    pub memory_mib: u32,
    /// Run only the first so many tests of a row.
    #[schemars(range(min = 1, max = 10000))]
    pub max_tests: u32,
    /// How tests become a reward.
    pub scoring: CodeScoring,
}

impl Default for CodeRewardSpec {
    fn default() -> Self {
        Self {
            language: "python".into(),
            run_seconds: 10,
            memory_mib: 1024,
            max_tests: 10,
            scoring: CodeScoring::default(),
        }
    }
}

/// How unit tests become a reward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum CodeScoring {
    /// The share of tests that pass.
    #[default]
    Fraction,
    /// 1 when all tests pass; the first that fails ends the row.
    All,
}

/// How a language model judges.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct JudgeSpec {
    /// The model's name at the server.
    #[schemars(length(min = 1, max = 256))]
    pub model: String,
    /// The message to the model, a Jinja template of `prompt`, `completion`, `ground_truth`, `data_source`
    /// and
    /// `extra_info`.
    #[schemars(length(min = 1, max = 65536))]
    pub rubric: String,
    /// A regular expression for the score in the model's answer: what it captures last, by its group `score`
    /// or its first group. By default a number in double brackets, such as `[[7.5]]`.
    #[serde(default = "JudgeSpec::default_pattern")]
    #[schemars(length(min = 1, max = 4096))]
    pub pattern: String,
    /// Smallest score; a smaller one is no answer.
    #[serde(default)]
    #[schemars(range(min = -1e9, max = 1e9))]
    pub min_score: f64,
    /// Largest score; a larger one is no answer.
    #[serde(default = "JudgeSpec::default_max_score")]
    #[schemars(range(min = -1e9, max = 1e9))]
    pub max_score: f64,
    /// Longest answer of the model in tokens.
    #[serde(default = "JudgeSpec::default_max_tokens")]
    #[schemars(range(min = 1, max = 1048576))]
    pub max_tokens: u32,
    /// The model's temperature.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 10.0))]
    pub temperature: f64,
    /// Requests that each rank may make for one batch, repeated ones included; samples beyond have the status
    /// `infra`. By default without end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_requests_per_batch: Option<u64>,
    /// Tokens, as the server counts them, after which a rank makes no further request for the batch. By
    /// default without end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_tokens_per_batch: Option<u64>,
}

impl JudgeSpec {
    fn default_pattern() -> String {
        r"\[\[\s*(-?[0-9]+(?:\.[0-9]+)?)\s*\]\]".into()
    }
    pub(crate) fn default_max_score() -> f64 {
        10.0
    }
    fn default_max_tokens() -> u32 {
        1024
    }
}
