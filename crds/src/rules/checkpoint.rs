//! The rules of `spec.checkpoint`.

use super::{Check, Rule, cel_list};

/// How an address begins.
const SCHEMES: [&str; 4] = ["s3://", "gs://", "az://", "file:///"];

fn is_address(uri: &str) -> bool {
    SCHEMES
        .iter()
        .any(|scheme| uri.strip_prefix(scheme).is_some_and(|rest| rest.starts_with(|first| first != '/')))
}

pub(super) const RULES: &[Rule] = &[Rule {
    scope: "spec.checkpoint",
    at: "uri",
    reads: &["uri"],
    message: "uri must be an object store with a bucket, or a folder: s3://, gs://, az:// or file:///",
    cel: || {
        format!(
            "!has(self.uri) || {}.exists(scheme, self.uri.startsWith(scheme) && self.uri.size() > scheme.size() && \
             !self.uri.startsWith(scheme + '/'))",
            cel_list(&SCHEMES)
        )
    },
    holds: Check::Spec(|spec| spec.checkpoint.uri.as_deref().is_none_or(is_address)),
    allowed: Some(|_| {
        "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or file:///FOLDER".into()
    }),
}];
