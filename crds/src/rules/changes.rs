//! What may not change in a job that exists. Only the API server sees a change, so these rules have no form
//! in Rust.
//!
//! The API server evaluates every rule at every write, those of the status too, and comparing whole sections
//! is dear. All stand at the root, where they see whether the status is what is being written: then the
//! specification stays as it is, and there is nothing to compare. Nobody gets around them by this: who writes
//! the specification cannot change the status beside it.

use serde_json::Value;

use crate::crd::schema_at;

/// A field that may not change.
pub(crate) struct ChangeRule {
    /// The section that it is about.
    pub(crate) section: &'static str,
    /// The field at which a problem is reported, relative to the section; empty for the section itself.
    pub(crate) at: &'static str,
    /// What must hold, for people.
    pub(crate) message: &'static str,
    cel: fn(section: &str, schema: &Value) -> String,
}

impl ChangeRule {
    /// The rule as the API server evaluates it at the root, whose schema is `root`.
    pub(crate) fn cel(&self, root: &Value) -> String {
        let same = schema_at(root, self.section).map(|schema| (self.cel)(self.section, schema));
        format!("{STATUS_IS_WRITTEN} || ({})", same.unwrap_or_default())
    }
}

/// The API server fills both in where they are missing. Whether they are is not asked: that would cost as
/// much again.
const STATUS_IS_WRITTEN: &str = "self.status.writes != oldSelf.status.writes";

/// Fields of `spec.training` that a run may be continued with another value of.
const CONTINUABLE: [&str; 4] = ["steps", "epochs", "evaluateEvery", "offload"];

const NEVER: &str = "cannot be changed, because the run could not be continued under it: make a new job";

/// Every rule about changes.
pub(crate) const CHANGE_RULES: &[ChangeRule] = &[
    ChangeRule { section: "spec.model", at: "", message: NEVER, cel: same },
    ChangeRule { section: "spec.data", at: "", message: NEVER, cel: same },
    ChangeRule { section: "spec.rewards", at: "", message: NEVER, cel: same },
    ChangeRule { section: "spec.algorithm", at: "", message: NEVER, cel: same },
    ChangeRule { section: "spec.rollout", at: "", message: NEVER, cel: same },
    ChangeRule {
        section: "spec.training",
        at: "",
        message: "only steps, epochs, evaluateEvery and offload can be changed, because the run could not be \
                  continued otherwise: make a new job",
        cel: same_training,
    },
    ChangeRule {
        section: "spec",
        at: "",
        message: "training, checkpoint, tracking and workers can be changed only while runPolicy.suspend is true",
        cel: |spec, _| {
            let sections = ["training", "checkpoint", "tracking", "workers"];
            let same = sections.map(|section| equal(&format!("{spec}.{section}"))).join(" && ");
            format!("self.{spec}.runPolicy.suspend || oldSelf.{spec}.runPolicy.suspend || ({same})")
        },
    },
    ChangeRule {
        section: "spec.runPolicy",
        at: "managedBy",
        message: "managedBy cannot be changed",
        cel: |section, _| same_optional(&format!("{section}.managedBy")),
    },
];

fn same(section: &str, _: &Value) -> String {
    equal(section)
}

/// Every field but those that a run may be continued with another value of.
fn same_training(section: &str, schema: &Value) -> String {
    let fields = schema["properties"].as_object().into_iter().flatten();
    let fixed = fields.filter(|(name, _)| !CONTINUABLE.contains(&name.as_str()));
    let rules = fixed.map(|(name, field)| {
        let path = format!("{section}.{name}");
        if field.get("default").is_some() { equal(&path) } else { same_optional(&path) }
    });
    rules.collect::<Vec<_>>().join(" && ")
}

fn equal(path: &str) -> String {
    format!("self.{path} == oldSelf.{path}")
}

/// A field without a default is compared only where both have it.
fn same_optional(path: &str) -> String {
    format!("has(self.{path}) == has(oldSelf.{path}) && (!has(self.{path}) || {})", equal(path))
}
