//! The rules of `spec.tracking`.

use super::rewards::is_plain_url;
use super::{Check, Rule};

pub(super) const RULES: &[Rule] = &[Rule {
    scope: "spec.tracking.mlflow",
    at: "url",
    reads: &["url"],
    message: "the address of the server must begin with http:// or https:// and hold no space and no password (`@`)",
    cel: || "self.url.matches('^https?://[^/@ ]+(/[^@ ]*)?$')".into(),
    holds: Check::Spec(|spec| spec.tracking.mlflow.as_ref().is_none_or(|mlflow| is_plain_url(&mlflow.url))),
    allowed: None,
}];
