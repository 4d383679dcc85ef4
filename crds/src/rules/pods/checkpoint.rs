//! Rules of `spec.checkpoint`.

use super::super::{Check, Rule, cel_list};

/// Prefixes of an object store's address.
const SCHEMES: [&str; 4] = ["s3://", "gs://", "az://", "file:///"];

fn is_address(uri: &str) -> bool {
    SCHEMES
        .iter()
        .any(|scheme| uri.strip_prefix(scheme).is_some_and(|rest| rest.starts_with(|first| first != '/')))
}

/// Whether no `@` stands before the path of an address, where URLs have user and password.
fn has_plain_bucket(uri: &str) -> bool {
    let rest = uri.split_once("://").filter(|(scheme, _)| !scheme.contains('/')).map_or("", |(_, rest)| rest);
    !rest.split('/').next().unwrap_or_default().contains('@')
}

pub(in crate::rules) const RULES: &[Rule] = &[
    Rule {
        scope: "spec.checkpoint.uri",
        at: "",
        reads: &[""],
        message: "uri must be an object store with a bucket, or a folder: s3://, gs://, az:// or file:///",
        cel: || {
            format!(
                "{}.exists(scheme, self.startsWith(scheme) && self.size() > scheme.size() && \
             !self.startsWith(scheme + '/'))",
                cel_list(&SCHEMES)
            )
        },
        holds: Check::Spec(|spec| spec.checkpoint.uri.as_deref().is_none_or(is_address)),
        allowed: Some(|_| {
            "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or file:///FOLDER".into()
        }),
    },
    Rule {
        scope: "spec.checkpoint.uri",
        at: "",
        reads: &[""],
        message: "the name of the bucket must hold no password (`@`)",
        cel: || "!self.matches('^[^/]*://[^/]*@')".into(),
        holds: Check::Spec(|spec| spec.checkpoint.uri.as_deref().is_none_or(has_plain_bucket)),
        allowed: Some(|_| {
            "s3://BUCKET/PREFIX; credentials are read from the environment of the workers".into()
        }),
    },
    Rule {
        scope: "spec",
        at: "checkpoint.keepBest",
        reads: &["checkpoint.keepBest", "rewards.functions"],
        message: "keepBest needs rewards, by which checkpoints are compared",
        cel: || "!self.checkpoint.keepBest || self.rewards.functions.size() > 0".into(),
        holds: Check::Spec(|spec| !spec.checkpoint.keep_best || !spec.rewards.functions.is_empty()),
        allowed: Some(|_| "false, or true with rewards.functions and held-out prompts".into()),
    },
];
