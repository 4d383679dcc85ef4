//! Reward functions behind HTTP servers: how servers are reached, code is run and language models are asked.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// HTTP server for rewards. Requests that fail, time out or get no complete answer (connection lost, status
/// 408, 425, 429 or 5xx, an answer that cannot be parsed) are retried; redirects are not followed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RewardServerSpec {
    /// URL of the requests, `http://` or `https://`, with its path.
    #[schemars(length(min = 1, max = 2048))]
    pub url: String,
    /// Headers of every request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub headers: Vec<HeaderSpec>,
    /// PEM file with certificate authorities to trust in addition to the system's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub ca_file: Option<String>,
    /// Timeout of one request in seconds, from its start to the last byte of its answer. Time in the queue
    /// does not count.
    #[serde(default = "RewardServerSpec::default_timeout_seconds")]
    #[schemars(range(min = 0.01, max = 3600.0))]
    pub timeout_seconds: f64,
    /// Maximum number of retries of a request, with growing pauses of up to 5 s.
    #[serde(default = "RewardServerSpec::default_retries")]
    #[schemars(range(min = 0, max = 20))]
    pub retries: u32,
    /// Maximum number of concurrent requests of each rank.
    #[serde(default = "RewardServerSpec::default_max_concurrent")]
    #[schemars(range(min = 1, max = 1024))]
    pub max_concurrent: u32,
    /// Maximum number of samples in one request, for `Server` and `OpenRlhf`; a full request is sent at once.
    #[serde(default = "RewardServerSpec::default_max_batch")]
    #[schemars(range(min = 1, max = 4096))]
    pub max_batch: u32,
    /// Maximum size of an answer in bytes; a larger one is an error.
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

/// HTTP header of every request. Exactly one of `value` and `env` is given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HeaderSpec {
    /// Name of the header.
    #[schemars(length(min = 1, max = 256))]
    pub name: String,
    /// Value in plain text; use `env` for a secret value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub value: Option<String>,
    /// Environment variable that holds the full value, such as `Bearer ...`; `workers.env` sets it from a
    /// Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub env: Option<String>,
}

/// Execution of a completion's code: its last fenced block, or all of it where it has none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CodeRewardSpec {
    /// Language of the code, by SandboxFusion's name. Assertions, tests that call a function (`fn_name`) and
    /// the sandbox need `python`.
    #[schemars(length(min = 1, max = 64))]
    pub language: String,
    /// Timeout in seconds for compiling, and for running, one test. In the sandbox `wasm.timeoutSeconds`
    /// applies too.
    #[schemars(range(min = 1, max = 3600))]
    pub run_seconds: u32,
    /// Memory limit of one test in MiB. In the sandbox `wasm.memoryMib` applies too.
    #[schemars(range(min = 16, max = 1048576))]
    pub memory_mib: u32,
    /// Maximum number of tests of a row that are run, from the first.
    #[schemars(range(min = 1, max = 10000))]
    pub max_tests: u32,
    /// Reward for the results of the tests.
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

/// Reward for the results of unit tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum CodeScoring {
    /// Fraction of the tests that pass.
    #[default]
    Fraction,
    /// 1 when all tests pass, else 0; the first that fails ends the row.
    All,
}

/// Language model that judges completions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct JudgeSpec {
    /// Name of the model at the server.
    #[schemars(length(min = 1, max = 256))]
    pub model: String,
    /// Message to the model, a Jinja template of `prompt`, `completion`, `ground_truth`, `data_source` and
    /// `extra_info`.
    #[schemars(length(min = 1, max = 65536))]
    pub rubric: String,
    /// Regular expression for the score in the model's answer: the last match of its group `score` or of its
    /// first group. By default a number in double brackets, such as `[[7.5]]`.
    #[serde(default = "JudgeSpec::default_pattern")]
    #[schemars(length(min = 1, max = 4096))]
    pub pattern: String,
    /// Lowest valid score; an answer with a lower one counts as no answer.
    #[serde(default)]
    #[schemars(range(min = -1e9, max = 1e9))]
    pub min_score: f64,
    /// Highest valid score; an answer with a higher one counts as no answer.
    #[serde(default = "JudgeSpec::default_max_score")]
    #[schemars(range(min = -1e9, max = 1e9))]
    pub max_score: f64,
    /// Maximum length of the model's answer in tokens.
    #[serde(default = "JudgeSpec::default_max_tokens")]
    #[schemars(range(min = 1, max = 1048576))]
    pub max_tokens: u32,
    /// Sampling temperature of the model.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 10.0))]
    pub temperature: f64,
    /// Maximum number of requests of each rank for one batch, retries included; samples beyond it have the
    /// status `infra`. By default no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_requests_per_batch: Option<u64>,
    /// Number of tokens, as the server counts them, after which a rank sends no further request for the
    /// batch. By default no limit.
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
