//! Typed reading of a JSON object's fields, with errors that name the field, what was expected and what was
//! found.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::super::ModelConfigError;
use super::bounds::{MAX_DEPTH, MAX_LENGTH, MAX_SIZE};

/// A JSON object whose fields are read with their types checked.
pub(crate) struct Fields<'a> {
    path: &'a str,
    map: Cow<'a, Map<String, Value>>,
}

impl<'a> Fields<'a> {
    pub(crate) fn root(document: &'a Value) -> Result<Self, ModelConfigError> {
        let map = document.as_object().ok_or(ModelConfigError::NotAnObject { got: json_type(document) })?;
        Ok(Self { path: "", map: Cow::Borrowed(map) })
    }

    /// Returns an object without fields.
    pub(crate) fn empty() -> Self {
        Self { path: "", map: Cow::Owned(Map::new()) }
    }

    /// Returns the fields by name.
    pub(crate) fn all(&self) -> &Map<String, Value> {
        &self.map
    }

    pub(crate) fn get(&self, field: &str) -> Option<&Value> {
        self.map.get(field)
    }

    /// Reads a nested object; absent and null read as an empty one.
    pub(crate) fn object(&self, field: &'a str) -> Result<Fields<'_>, ModelConfigError> {
        let map = match self.get(field) {
            None | Some(Value::Null) => Cow::Owned(Map::new()),
            Some(Value::Object(map)) => Cow::Borrowed(map),
            Some(_) => return Err(self.invalid(field, "an object")),
        };
        Ok(Fields { path: field, map })
    }

    pub(crate) fn text(&self, field: &str) -> Result<Option<&str>, ModelConfigError> {
        self.typed(field, "a string", Value::as_str)
    }

    pub(crate) fn number(&self, field: &str) -> Result<Option<f64>, ModelConfigError> {
        self.typed(field, "a number", Value::as_f64)
    }

    pub(crate) fn missing(&self, field: &str) -> ModelConfigError {
        ModelConfigError::MissingField { field: self.full_name(field) }
    }

    pub(crate) fn invalid(&self, field: &str, expected: &str) -> ModelConfigError {
        ModelConfigError::InvalidField {
            field: self.full_name(field),
            expected: expected.to_owned(),
            got: self.shown(field),
        }
    }

    pub(crate) fn unsupported(&self, field: &str, supported: &str) -> ModelConfigError {
        ModelConfigError::Unsupported {
            field: self.full_name(field),
            got: self.shown(field),
            supported: supported.to_owned(),
        }
    }

    pub(crate) fn flag(&self, field: &str) -> Result<Option<bool>, ModelConfigError> {
        self.typed(field, "true or false", Value::as_bool)
    }

    pub(crate) fn count(&self, field: &str) -> Result<Option<usize>, ModelConfigError> {
        let whole = |value: &Value| value.as_u64().and_then(|value| usize::try_from(value).ok());
        self.typed(field, "an integer of at least 0", whole)
    }

    /// Reads a width, or a number of heads, experts or tokens in the vocabulary.
    pub(crate) fn size(&self, field: &str) -> Result<Option<usize>, ModelConfigError> {
        self.integer_up_to(field, MAX_SIZE)
    }

    pub(crate) fn required_size(&self, field: &str) -> Result<usize, ModelConfigError> {
        self.size(field)?.ok_or_else(|| self.missing(field))
    }

    /// Reads a number of layers, for each of which parsing allocates memory.
    pub(crate) fn depth(&self, field: &str) -> Result<Option<usize>, ModelConfigError> {
        self.integer_up_to(field, MAX_DEPTH)
    }

    /// Reads a number of tokens in a sequence.
    pub(crate) fn length(&self, field: &str) -> Result<Option<usize>, ModelConfigError> {
        self.integer_up_to(field, MAX_LENGTH)
    }

    fn integer_up_to(&self, field: &str, max: u64) -> Result<Option<usize>, ModelConfigError> {
        let fitting = |value: &Value| {
            value.as_u64().filter(|value| (1..=max).contains(value)).map(|value| value as usize)
        };
        self.typed(field, &format!("an integer from 1 to {max}"), fitting)
    }

    pub(crate) fn list(&self, field: &str) -> Result<Option<&[Value]>, ModelConfigError> {
        self.typed(field, "a list", |value| value.as_array().map(Vec::as_slice))
    }

    pub(crate) fn token_id(
        &self,
        field: &str,
        default: Option<u32>,
    ) -> Result<Option<u32>, ModelConfigError> {
        if self.get(field).is_none() {
            return Ok(default);
        }
        let id = self.typed(field, "a token id or null", Value::as_i64)?;
        Ok(id.and_then(|id| u32::try_from(id).ok()))
    }

    fn typed<'s, T>(
        &'s self,
        field: &str,
        expected: &str,
        read: impl Fn(&'s Value) -> Option<T>,
    ) -> Result<Option<T>, ModelConfigError> {
        match self.get(field) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => read(value).map(Some).ok_or_else(|| self.invalid(field, expected)),
        }
    }

    fn full_name(&self, field: &str) -> String {
        if self.path.is_empty() { field.to_owned() } else { format!("{}.{field}", self.path) }
    }

    fn shown(&self, field: &str) -> String {
        self.get(field).map_or_else(|| "nothing".to_owned(), Value::to_string)
    }
}

fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
