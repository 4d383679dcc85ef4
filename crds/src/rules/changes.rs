//! Fields of an existing job that may not change. Only the API server sees a change, so these rules have no
//! form in Rust.
//!
//! The API server evaluates every rule at every write, also of the status, and each field access copies the
//! schema of all sibling fields. So these rules are one rule at the root, which first checks whether the
//! status is being written; if so, the specification is unchanged and nothing is compared. This is no
//! loophole: a write of the specification cannot change the status.

use serde_json::{Value, json};

use crate::schema::schema_at;

/// A field, or group of fields, that may not change.
struct ChangeRule {
    /// Name of the field in messages.
    field: &'static str,
    /// Section whose schema the CEL expression depends on.
    section: &'static str,
    /// Message to the user: what must hold.
    message: &'static str,
    cel: fn(section: &str, schema: &Value) -> String,
}

/// Returns the rule about changes that the API server evaluates at the root, whose schema is `root`. Its
/// message is that of the first forbidden change.
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

/// CEL condition that only the status is written. The API server fills in both counters; checking whether
/// they are present would double the cost.
const STATUS_IS_WRITTEN: &str = "self.status.writes != oldSelf.status.writes";

/// Fields of `spec.training` that may change while the run continues.
const CONTINUABLE: [&str; 6] =
    ["steps", "epochs", "evaluateEvery", "offload", "reshardAfterForward", "unshardedLayers"];

const NEVER: &str = "cannot be changed, because the run could not be continued under it: make a new job";

/// All rules about changes.
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

/// CEL condition that no field of the section changes, except those of [`CONTINUABLE`].
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

/// CEL condition that a field without a default does not change; its values are compared only if both are
/// present.
fn same_optional(path: &str) -> String {
    format!("has(self.{path}) == has(oldSelf.{path}) && (!has(self.{path}) || {})", equal(path))
}
