//! The difference between an object on the cluster and the one that would be applied, line by line. Pure.

use serde::Serialize;
use serde_json::Value;
use similar::TextDiff;

use super::origins::{self, FieldOrigin};

/// Lines around a difference.
const CONTEXT_LINES: usize = 2;
/// Fields that the API server sets.
const SERVER_FIELDS: [&str; 5] =
    ["managedFields", "resourceVersion", "generation", "uid", "creationTimestamp"];

/// The result for one object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "outcome")]
pub(super) enum Outcome {
    /// It would be made.
    Made,
    /// It exists and would not change.
    Same,
    /// It exists and would change like this.
    Changed { difference: String },
    /// It exists and depends on the attempt, not on the manifest.
    Kept,
    /// The workers' GPU holds the job.
    Fits { message: String },
    /// Its values, with their sources.
    Values { values: Vec<FieldOrigin> },
    /// The cluster would not have it.
    Refused { message: String },
}

/// The cluster's answer for one object, or for one kind of GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PlanCheck {
    pub(super) kind: String,
    pub(super) name: String,
    #[serde(flatten)]
    pub(super) outcome: Outcome,
}

impl PlanCheck {
    pub(super) fn render(&self) -> String {
        let line = |mark: &str, what: &str| format!("{mark} {} {}: {what}\n", self.kind, self.name);
        match &self.outcome {
            Outcome::Made => line("+", "would be made"),
            Outcome::Same => line("=", "stays as it is"),
            Outcome::Kept => line("=", "stays; it follows the attempt"),
            Outcome::Fits { message } => line("=", message),
            Outcome::Values { values } => {
                line(" ", "where the values of spec.workers come from") + &origins::render(values)
            }
            Outcome::Refused { message } => line("!", &format!("would be refused: {message}")),
            Outcome::Changed { difference } => {
                let indented: String = difference.lines().map(|line| format!("    {line}\n")).collect();
                line("~", "would change") + &indented
            }
        }
    }

    pub(super) fn is_refusal(&self) -> bool {
        matches!(self.outcome, Outcome::Refused { .. })
    }
}

/// The difference between an object as it is and as it would be.
///
/// # Errors
/// When one of them has no form in YAML.
pub(super) fn compare(is: Value, would_be: Value) -> Result<Outcome, serde_saphyr::SerializeError> {
    let (is, would_be) = (in_yaml(is)?, in_yaml(would_be)?);
    if is == would_be {
        return Ok(Outcome::Same);
    }
    let difference = TextDiff::from_lines(&is, &would_be);
    let difference = difference.unified_diff().context_radius(CONTEXT_LINES).to_string();
    Ok(Outcome::Changed { difference })
}

fn in_yaml(mut object: Value) -> Result<String, serde_saphyr::SerializeError> {
    if let Some(fields) = object.as_object_mut() {
        fields.remove("status");
        if let Some(Value::Object(metadata)) = fields.get_mut("metadata") {
            metadata.retain(|name, _| !SERVER_FIELDS.contains(&name.as_str()));
        }
    }
    object.sort_all_objects();
    serde_saphyr::to_string(&object)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Outcome, PlanCheck, compare};

    #[test]
    fn only_what_people_and_operators_write_is_compared() {
        let is = json!({"metadata": {"name": "a", "resourceVersion": "1", "uid": "u"}, "status": {"x": 1}, "data": {"k": "v"}});
        let same = json!({"data": {"k": "v"}, "metadata": {"resourceVersion": "2", "name": "a"}});
        assert_eq!(compare(is.clone(), same).unwrap(), Outcome::Same);
        let outcome = compare(is, json!({"metadata": {"name": "a"}, "data": {"k": "w"}})).unwrap();
        let comparison = PlanCheck { kind: "ConfigMap".into(), name: "a".into(), outcome };
        insta::assert_snapshot!(comparison.render(), @r"
        ~ ConfigMap a: would change
            @@ -1,4 +1,4 @@
             data:
            -  k: v
            +  k: w
             metadata:
               name: a
        ");
    }
}
