//! Validity of a JSON completion under a JSON schema.

use std::sync::Arc;

use jsonschema::error::ValidationErrorKind;
use jsonschema::{PatternOptions, ValidationError, Validator};
use serde_json::Value;

use super::pattern::linear;
use super::{DeclaredReward, Given, RewardError, RewardFunction, Sample, Setting, Values, one_if};
use crate::pattern_error::PatternError;

/// 1 when the completion is one JSON document that the schema accepts; else 0, unparseable text included.
///
/// A document inside one Markdown fence (```` ```json ````) counts as the document. `$ref` resolves inside
/// the schema only: nothing is fetched. Patterns run in the linear-time dialect.
#[derive(Debug)]
pub struct JsonSchema {
    validator: Validator,
}

impl JsonSchema {
    /// Compiles the schema (drafts 4 to 2020-12, by `$schema`).
    ///
    /// # Errors
    /// [`RewardError::Schema`].
    pub fn new(schema: &Value) -> Result<Self, RewardError> {
        let options = jsonschema::options().with_pattern_options(PatternOptions::regex());
        let built = options.build(schema);
        let validator = built.map_err(|error| RewardError::Schema { message: message(&error) })?;
        Ok(Self { validator })
    }
}

/// Returns the validator's message, for a pattern that is refused with the reason of the engine.
fn message(error: &ValidationError<'_>) -> String {
    let is_pattern = match error.kind() {
        ValidationErrorKind::PropertyNames { error } => return message(error),
        ValidationErrorKind::Format { format } => format == "regex",
        _ => false,
    };
    let pattern = error.instance().as_str().filter(|_| is_pattern);
    match pattern.and_then(|pattern| linear(pattern).err()) {
        Some(refused) => format!("{error}: {}", PatternError::linear(&refused)),
        None => error.to_string(),
    }
}

const SCHEMA: Setting =
    Setting { name: "schema", doc: "A JSON schema, for `JsonSchema`.", values: Values::Object };

impl DeclaredReward for JsonSchema {
    const NAME: &'static str = "JsonSchema";
    const DOC: &'static str = "1 when the completion is JSON that satisfies `schema`.";
    const SETTINGS: &'static [&'static Setting] = &[&SCHEMA];

    fn build(given: &Given<'_>) -> Result<Arc<dyn RewardFunction>, RewardError> {
        Ok(Arc::new(Self::new(given.settings.object(&SCHEMA)?)?))
    }
}

impl RewardFunction for JsonSchema {
    fn score(&self, sample: &Sample<'_>) -> Result<f64, RewardError> {
        let document = serde_json::from_str::<Value>(without_fence(sample.completion.trim()));
        Ok(one_if(document.is_ok_and(|document| self.validator.is_valid(&document))))
    }

    fn range(&self) -> (f64, f64) {
        (0.0, 1.0)
    }

    fn compares_with_ground_truth(&self) -> bool {
        false
    }
}

fn without_fence(text: &str) -> &str {
    let inside = text.strip_prefix("```").and_then(|rest| rest.strip_suffix("```"));
    inside.map_or(text, |inside| inside.strip_prefix("json").unwrap_or(inside).trim())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::sample;
    use super::*;

    #[test]
    fn valid_documents_earn_one_and_everything_else_zero() {
        let schema = json!({"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}});
        let reward = JsonSchema::new(&schema).unwrap();
        let score = |text: &str| reward.score(&sample(text, &json!(null))).unwrap();
        for right in [r#"{"a": 1}"#, " {\"a\": 1}\n", "```json\n{\"a\": 1}\n```", "```\n{\"a\": 1}```"] {
            assert_eq!(score(right), 1.0, "{right}");
        }
        for wrong in ["", "{", r#"{"a": "1"}"#, r#"{"a": 1} {"a": 1}"#, "Here: {\"a\": 1}", "[]"] {
            assert_eq!(score(wrong), 0.0, "{wrong}");
        }
    }

    #[test]
    fn deep_nesting_is_a_parse_failure_and_no_overflow() {
        let reward = JsonSchema::new(&json!({})).unwrap();
        let deep = "[".repeat(100_000);
        assert_eq!(reward.score(&sample(&deep, &json!(null))).unwrap(), 0.0);
    }

    #[test]
    fn a_refused_pattern_is_quoted_with_the_reason_of_the_engine() {
        for schema in [json!({"pattern": "a{2,1}"}), json!({"patternProperties": {"a{2,1}": {}}})] {
            for draft in [None, Some("http://json-schema.org/draft-07/schema#")] {
                let mut schema = schema.clone();
                draft.into_iter().for_each(|draft| schema["$schema"] = draft.into());
                let Err(RewardError::Schema { message }) = JsonSchema::new(&schema) else {
                    panic!("{schema}")
                };
                let reason = "invalid repetition count range, the start must be <= the end";
                assert!(message.contains("a{2,1}") && message.contains(reason), "{schema}: {message}");
            }
        }
    }

    #[test]
    fn invalid_schemas_and_remote_references_are_refused() {
        assert!(matches!(JsonSchema::new(&json!({"type": 3})), Err(RewardError::Schema { .. })));
        let remote = json!({"$ref": "https://example.com/schema.json"});
        assert!(matches!(JsonSchema::new(&remote), Err(RewardError::Schema { .. })));
    }
}
