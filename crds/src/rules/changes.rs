//! What may not change in a job that exists. Only the API server sees a change, so these rules have no form in Rust.

use serde_json::Value;

/// A field that may not change.
pub(crate) struct ChangeRule {
    /// Where `self` and `oldSelf` stand.
    pub(crate) scope: &'static str,
    /// The field at which a problem is reported, relative to the scope; empty for the scope itself.
    pub(crate) at: &'static str,
    /// What must hold, for people.
    pub(crate) message: &'static str,
    /// The rule as the API server evaluates it, by the schema of its scope.
    pub(crate) cel: fn(&Value) -> String,
}

/// Fields of `spec.training` that a run may be continued with another value of.
const CONTINUABLE: [&str; 4] = ["steps", "epochs", "evaluateEvery", "offload"];

const NEVER: &str = "cannot be changed, because the run could not be continued under it: make a new job";

/// Every rule about changes.
pub(crate) const CHANGE_RULES: &[ChangeRule] = &[
    ChangeRule { scope: "spec.model", at: "", message: NEVER, cel: same },
    ChangeRule { scope: "spec.data", at: "", message: NEVER, cel: same },
    ChangeRule { scope: "spec.rewards", at: "", message: NEVER, cel: same },
    ChangeRule { scope: "spec.algorithm", at: "", message: NEVER, cel: same },
    ChangeRule { scope: "spec.rollout", at: "", message: NEVER, cel: same },
    ChangeRule {
        scope: "spec.training",
        at: "",
        message: "only steps, epochs, evaluateEvery and offload can be changed, because the run could not be \
                  continued otherwise: make a new job",
        cel: same_training,
    },
    ChangeRule {
        scope: "spec",
        at: "",
        message: "training, checkpoint, tracking and workers can be changed only while runPolicy.suspend is true",
        cel: |_| {
            "self.runPolicy.suspend || oldSelf.runPolicy.suspend || (self.training == oldSelf.training && \
             self.checkpoint == oldSelf.checkpoint && self.tracking == oldSelf.tracking && \
             self.workers == oldSelf.workers)"
                .into()
        },
    },
    ChangeRule {
        scope: "spec.runPolicy",
        at: "managedBy",
        message: "managedBy cannot be changed",
        cel: |_| same_optional("managedBy"),
    },
];

fn same(_: &Value) -> String {
    "self == oldSelf".into()
}

/// Every field but those that a run may be continued with another value of.
fn same_training(schema: &Value) -> String {
    let fields = schema["properties"].as_object().into_iter().flatten();
    let fixed = fields.filter(|(name, _)| !CONTINUABLE.contains(&name.as_str()));
    let rules = fixed.map(|(name, field)| match field.get("default") {
        Some(_) => format!("self.{name} == oldSelf.{name}"),
        None => same_optional(name),
    });
    rules.collect::<Vec<_>>().join(" && ")
}

/// A field without a default is compared only where both have it.
fn same_optional(field: &str) -> String {
    format!(
        "has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})"
    )
}
