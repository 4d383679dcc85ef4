//! The rules of `spec.tracking`.

use super::rewards::is_plain_url;
use super::{Check, Rule};
use crate::spec::{RLTrainingJobSpec, TrackingSpec};

/// The address of a tracking server is one that requests can be sent to, without a password.
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

/// The address that a section has, if it is there.
fn address(spec: &RLTrainingJobSpec, of: fn(&TrackingSpec) -> Option<&String>) -> Option<&str> {
    of(&spec.tracking).map(String::as_str)
}

pub(super) const RULES: &[Rule] = &[
    is_plain_address!("spec.tracking.mlflow", |tracking| tracking.mlflow.as_ref().map(|server| &server.url)),
    is_plain_address!("spec.tracking.trackio", |tracking| tracking
        .trackio
        .as_ref()
        .map(|server| &server.url)),
];
