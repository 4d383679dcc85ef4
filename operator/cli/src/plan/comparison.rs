//! Difference between an object on the cluster and the one that would be applied, line by line, as pure
//! functions.

use serde::Serialize;
use serde_json::Value;
use similar::TextDiff;

use super::origins::{self, FieldOrigin};

/// Number of unchanged lines around a difference.
const CONTEXT_LINES: usize = 2;
/// Metadata fields that the API server sets, which are not compared.
const SERVER_FIELDS: [&str; 5] =
    ["managedFields", "resourceVersion", "generation", "uid", "creationTimestamp"];

/// Result of the check of one object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "outcome")]
pub(super) enum Outcome {
    /// The object does not exist and would be created.
    Made,
    /// The object exists and would not change.
    Same,
    /// The object exists and would change; the text is a unified diff.
    Changed { difference: String },
    /// The object exists and depends on the attempt, not on the manifest.
    Kept,
    /// The job fits the workers' GPU.
    Fits { message: String },
    /// Values of the job's workers, with their sources.
    Values { values: Vec<FieldOrigin> },
    /// The cluster would reject the object.
    Refused { message: String },
}

/// Result of the check of one object, or of one kind of GPU.
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

/// Compares an object on the cluster with the one that would be applied.
///
/// # Errors
/// When one of them cannot be written as YAML.
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
