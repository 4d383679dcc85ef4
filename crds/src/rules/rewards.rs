//! Rules of `spec.rewards`. `fields` checks that a function has the fields of its kind.

pub(super) mod fields;

use rlt_algorithms::reward::length::TARGET_TOKENS;

use super::model::{MIRROR, cel_is_plain_mirror, is_plain_mirror};
use super::{Check, Rule, cel_samples_nothing};
use crate::spec::{JudgeSpec, RewardKind};

/// Error for the address of a server or module that is no plain address.
const ADDRESS: &str =
    "the address must begin with http:// or https:// and hold no space and no password (`@`)";

fn is_header(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte == b'-' || byte.is_ascii_alphanumeric())
}

pub(super) fn is_plain_url(url: &str) -> bool {
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    rest.is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/') && !rest.contains(['@', ' ']))
}

pub(super) const RULES: &[Rule] = &[
    Rule {
        scope: "spec",
        at: "rewards.functions",
        reads: &["rewards.functions", "algorithm.kind"],
        message: "reinforcement learning needs at least one reward function",
        cel: || format!("self.rewards.functions.size() > 0 || {}", cel_samples_nothing("self.algorithm")),
        holds: Check::Spec(|spec| !spec.algorithm.kind.samples() || !spec.rewards.functions.is_empty()),
        allowed: None,
    },
    Rule {
        scope: "spec.rewards.functions",
        at: "",
        reads: &["[].name"],
        message: "the names of reward functions must differ",
        cel: || "self.all(one, self.exists_one(other, other.name == one.name))".into(),
        holds: Check::Spec(|spec| {
            let functions = &spec.rewards.functions;
            let is_first =
                |idx: usize| functions[..idx].iter().all(|other| other.name != functions[idx].name);
            (0..functions.len()).all(is_first)
        }),
        allowed: None,
    },
    Rule {
        scope: "spec.rewards.functions[]",
        at: "server",
        reads: &["server", "wasm", "kind"],
        message: "the kind Code needs exactly one of server and wasm",
        cel: || "self.kind != 'Code' || has(self.server) != has(self.wasm)".into(),
        holds: Check::RewardFunction(|function| {
            function.kind != RewardKind::Code || function.server.is_some() != function.wasm.is_some()
        }),
        allowed: None,
    },
    Rule {
        scope: "spec.rewards.functions[]",
        at: "code.language",
        reads: &["code.language", "wasm"],
        message: "the sandbox (wasm) runs python alone; other languages need a server",
        cel: || {
            "!has(self.wasm) || !has(self.code) || !has(self.code.language) || self.code.language == 'python'"
                .into()
        },
        holds: Check::RewardFunction(|function| {
            let is_python = function.code.as_ref().is_none_or(|code| code.language == "python");
            function.wasm.is_none() || is_python
        }),
        allowed: None,
    },
    Rule {
        scope: "spec.rewards.functions[].wasm",
        at: "",
        reads: &["path", "url", "sha256"],
        message: "exactly one of path and url must be given, and a url needs a sha256",
        cel: || "has(self.path) != has(self.url) && (has(self.path) || has(self.sha256))".into(),
        holds: Check::RewardFunction(|function| {
            function.wasm.as_ref().is_none_or(|wasm| {
                wasm.path.is_some() != wasm.url.is_some() && (wasm.path.is_some() || wasm.sha256.is_some())
            })
        }),
        allowed: None,
    },
    Rule {
        scope: "spec.rewards.functions[].wasm",
        at: "url",
        reads: &["url"],
        message: ADDRESS,
        cel: || "!has(self.url) || self.url.matches('^https?://[^/@ ]+(/[^@ ]*)?$')".into(),
        holds: Check::RewardFunction(|function| {
            let url = function.wasm.as_ref().and_then(|wasm| wasm.url.as_deref());
            url.is_none_or(is_plain_url)
        }),
        allowed: None,
    },
    Rule {
        scope: "spec.rewards.functions[].judge",
        at: "minScore",
        reads: &["minScore", "maxScore"],
        message: "minScore must be below maxScore",
        // The schema has no defaults of list items, so the expression has them.
        cel: || {
            let (min, max) = (0.0, JudgeSpec::default_max_score());
            format!(
                "(has(self.minScore) ? self.minScore : {min:.1}) < (has(self.maxScore) ? self.maxScore : {max:.1})"
            )
        },
        holds: Check::RewardFunction(|function| {
            function.judge.as_ref().is_none_or(|judge| judge.min_score < judge.max_score)
        }),
        allowed: None,
    },
    Rule {
        scope: "spec.rewards.functions[].server",
        at: "headers",
        reads: &["headers"],
        message: "every header needs a name of letters, digits and '-', and exactly one of value and env",
        cel: || {
            "!has(self.headers) || self.headers.all(one, has(one.value) != has(one.env) && \
             one.name.matches('^[-A-Za-z0-9]+$'))"
                .into()
        },
        holds: Check::RewardFunction(|function| {
            let mut headers = function.server.iter().flat_map(|server| &server.headers);
            headers.all(|header| header.value.is_some() != header.env.is_some() && is_header(&header.name))
        }),
        allowed: None,
    },
    Rule {
        scope: "spec.rewards.functions[].server",
        at: "url",
        reads: &["url"],
        message: ADDRESS,
        cel: || "self.url.matches('^https?://[^/@ ]+(/[^@ ]*)?$')".into(),
        holds: Check::RewardFunction(|function| {
            function.server.as_ref().is_none_or(|server| is_plain_url(&server.url))
        }),
        allowed: None,
    },
    Rule {
        scope: "spec",
        at: "rewards.batchTimeoutSeconds",
        reads: &["rewards.batchTimeoutSeconds", "rewards.functions", "workers.peerTimeoutSeconds"],
        message: "rewards.batchTimeoutSeconds must be below workers.peerTimeoutSeconds where a server or sandbox judges",
        cel: || {
            "!self.rewards.functions.exists(each, has(each.server) || has(each.wasm)) || \
             self.rewards.batchTimeoutSeconds < double(self.workers.peerTimeoutSeconds)"
                .into()
        },
        holds: Check::Spec(|spec| {
            spec.rewards.functions.iter().all(|each| each.server.is_none() && each.wasm.is_none())
                || spec.rewards.batch_timeout_seconds < f64::from(spec.workers.peer_timeout_seconds)
        }),
        allowed: Some(|spec| format!("below {}", spec.workers.peer_timeout_seconds)),
    },
    Rule {
        scope: "spec.rewards.functions[].model",
        at: "",
        reads: &["path", "hub"],
        message: "exactly one of path and hub must be given",
        cel: || "has(self.path) != has(self.hub)".into(),
        holds: Check::RewardFunction(|function| {
            function.model.as_ref().is_none_or(|model| model.path.is_some() != model.hub.is_some())
        }),
        allowed: None,
    },
    Rule {
        scope: "spec.rewards.functions[].model.hub",
        at: "endpoint",
        reads: &["endpoint"],
        message: MIRROR,
        cel: cel_is_plain_mirror,
        holds: Check::RewardFunction(|function| {
            let hub = function.model.as_ref().and_then(|model| model.hub.as_ref());
            is_plain_mirror(hub.and_then(|hub| hub.endpoint.as_ref()))
        }),
        allowed: None,
    },
    Rule {
        scope: "spec",
        at: "rewards.functions",
        reads: &["rewards.functions[].targetTokens", "rollout.maxCompletionTokens"],
        message: "targetTokens of every reward function must be below rollout.maxCompletionTokens",
        cel: || {
            "self.rewards.functions.all(each, !has(each.targetTokens) || \
             each.targetTokens < self.rollout.maxCompletionTokens)"
                .into()
        },
        holds: Check::Spec(|spec| {
            let limit = spec.rollout.max_completion_tokens;
            let targets = spec.rewards.functions.iter().map(|each| each.settings.integer(&TARGET_TOKENS));
            targets.flatten().all(|target| target < limit)
        }),
        allowed: Some(|spec| format!("targetTokens below {}", spec.rollout.max_completion_tokens)),
    },
    Rule {
        scope: "spec.rewards.clip",
        at: "min",
        reads: &["min", "max"],
        message: "min must be below max",
        cel: || "self.min < self.max".into(),
        holds: Check::Spec(|spec| spec.rewards.clip.as_ref().is_none_or(|clip| clip.min < clip.max)),
        allowed: None,
    },
    Rule {
        scope: "spec",
        at: "rewards.overlong.bufferTokens",
        reads: &["rewards.overlong.bufferTokens", "rollout.maxCompletionTokens"],
        message: "overlong.bufferTokens must not exceed rollout.maxCompletionTokens",
        cel: || {
            "!has(self.rewards.overlong) || self.rewards.overlong.bufferTokens <= self.rollout.maxCompletionTokens"
                .into()
        },
        holds: Check::Spec(|spec| {
            let limit = spec.rollout.max_completion_tokens;
            spec.rewards.overlong.as_ref().is_none_or(|overlong| overlong.buffer_tokens <= limit)
        }),
        allowed: Some(|spec| format!("1 to {}", spec.rollout.max_completion_tokens)),
    },
];
