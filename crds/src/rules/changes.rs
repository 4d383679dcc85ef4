//! Fields that may not change in an existing job. Only the API server sees a change, so these rules have no
//! form in Rust.
//!
//! The API server evaluates every rule at every write, also of the status, and each field access copies the
//! schema of all sibling fields. So these rules are one rule at the root, which first checks whether the
//! status is being written: then the specification is unchanged, and nothing is compared. This is no
//! loophole: a write of the specification cannot change the status.

use serde_json::{Value, json};

use crate::crd::schema_at;

/// A field that may not change.
struct ChangeRule {
    /// The field that it is about, in words.
    field: &'static str,
    /// The section whose schema its form in CEL depends on.
    section: &'static str,
    /// The message to the user: what must hold.
    message: &'static str,
    cel: fn(section: &str, schema: &Value) -> String,
}

/// The rule about changes as the API server evaluates it at the root, whose schema is `root`. Its message is
/// that of the first change that may not be.
pub(crate) fn change_rule(root: &Value) -> Value {
    let cel = |rule: &ChangeRule| {
        schema_at(root, rule.section).map(|schema| (rule.cel)(rule.section, schema)).unwrap_or_default()
    };
    let rules = CHANGE_RULES.map(|rule| (cel(&rule), format!("'{} {}'", rule.field, rule.message)));
    let holds = rules.iter().map(|(cel, _)| format!("({cel})")).collect::<Vec<_>>().join(" && ");
    let [others @ .., (_, last)] = &rules;
    let message =
        others.iter().rev().fold(last.clone(), |below, (cel, words)| format!("!({cel}) ? {words} : {below}"));
    json!({
        "rule": format!("{STATUS_IS_WRITTEN} || ({holds})"),
        "messageExpression": message,
        "fieldPath": ".spec",
    })
}

/// The API server fills both in where they are missing. Whether they are is not asked: that would cost as
/// much again.
const STATUS_IS_WRITTEN: &str = "self.status.writes != oldSelf.status.writes";

/// Fields of `spec.training` that a run may be continued with another value of.
const CONTINUABLE: [&str; 6] =
    ["steps", "epochs", "evaluateEvery", "offload", "reshardAfterForward", "unshardedLayers"];

const NEVER: &str = "cannot be changed, because the run could not be continued under it: make a new job";

/// Every rule about changes.
const CHANGE_RULES: [ChangeRule; 8] = [
    ChangeRule { field: "spec.model", section: "spec.model", message: NEVER, cel: same },
    ChangeRule { field: "spec.data", section: "spec.data", message: NEVER, cel: same },
    ChangeRule { field: "spec.rewards", section: "spec.rewards", message: NEVER, cel: same },
    ChangeRule { field: "spec.algorithm", section: "spec.algorithm", message: NEVER, cel: same },
    ChangeRule { field: "spec.rollout", section: "spec.rollout", message: NEVER, cel: same },
    ChangeRule {
        field: "of spec.training",
        section: "spec.training",
        message: "only steps, epochs, evaluateEvery, offload, reshardAfterForward and unshardedLayers can be \
                  changed, because the run could not be continued otherwise: make a new job",
        cel: same_training,
    },
    ChangeRule {
        field: "spec.managedBy",
        section: "spec",
        message: "cannot be changed",
        cel: |section, _| same_optional(&format!("{section}.managedBy")),
    },
    ChangeRule {
        field: "training, checkpoint, tracking and workers of spec",
        section: "spec",
        message: "can be changed only while runPolicy.suspend is true",
        cel: |spec, _| {
            let sections = ["training", "checkpoint", "tracking", "workers"];
            let same = sections.map(|section| equal(&format!("{spec}.{section}"))).join(" && ");
            format!("self.{spec}.runPolicy.suspend || oldSelf.{spec}.runPolicy.suspend || ({same})")
        },
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
