//! Rules of `spec.tracking`.

use super::super::rewards::is_plain_url;
use super::super::{Check, Rule};
use crate::spec::{RLTrainingJobSpec, TrackingSpec};

/// Rule that a tracking server's address is a URL without a password.
macro_rules! is_plain_address {
    ($scope:literal, $of:expr) => {
        Rule {
            scope: $scope,
            at: "url",
            reads: &["url"],
            message: "the address of the server must begin with http:// or https:// and hold no space and no \
                      password (`@`)",
            cel: || "self.url.matches('^https?://[^/@ ]+(/[^@ ]*)?$')".into(),
            holds: Check::Spec(|spec| address(spec, $of).is_none_or(is_plain_url)),
            allowed: None,
        }
    };
}

/// Returns the address in a section, if present.
fn address(spec: &RLTrainingJobSpec, of: fn(&TrackingSpec) -> Option<&String>) -> Option<&str> {
    of(&spec.tracking).map(String::as_str)
}

pub(in crate::rules) const RULES: &[Rule] = &[
    is_plain_address!("spec.tracking.mlflow", |tracking| tracking.mlflow.as_ref().map(|server| &server.url)),
    is_plain_address!("spec.tracking.trackio", |tracking| tracking
        .trackio
        .as_ref()
        .map(|server| &server.url)),
];
