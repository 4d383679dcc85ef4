//! How the trainer treats a field, and conditions on the values of several fields.

use serde_json::Value;

/// Treatment of a field.
#[derive(Clone, Copy, Debug)]
pub(super) enum Treatment {
    /// The trainer reads the field. Values that it does not support are refused where it is read.
    Obeyed,
    /// The field sets defaults of other programs; exports hold it unchanged.
    Exported,
    /// The field changes neither values nor tokens, for the given reason.
    Harmless(#[expect(dead_code, reason = "it is for readers of the tables")] &'static str),
    /// The field would change values or tokens. It is refused unless its value is null or one that is
    /// supported.
    Refused(Supported),
}

/// Supported values of a field that is otherwise refused.
#[derive(Clone, Copy, Debug)]
pub(super) struct Supported {
    /// Description of the supported values.
    pub(super) text: &'static str,
    /// Returns whether a value other than null is one of them.
    pub(super) includes: fn(&Value) -> bool,
}

/// Fields with the same treatment.
pub(super) type Group = (Treatment, &'static [&'static str]);

/// Returns whether a value is null, false or empty.
pub(super) fn is_off(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(entries) => entries.is_empty(),
        Value::Bool(true) | Value::Number(_) => false,
    }
}

/// Returns whether a value is a list without other names than that of `file`.
pub(super) fn lists_alone(value: &Value, file: &str) -> bool {
    value.as_array().is_some_and(|files| files.iter().all(|name| name == file))
}
