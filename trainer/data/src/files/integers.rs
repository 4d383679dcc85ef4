//! Integers of JSON that do not fit into 64 bits: the parser reads them as floats, which have other digits.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::super::{DataError, RowLocation};
use super::jsonl::string_length;

/// Smallest absolute value of a float that is read from an integer beyond 64 bits.
const LEAST: f64 = 9_223_372_036_854_775_808.0;
/// Description of the integers that can be read exactly, for errors.
const EXPECTED: &str =
    "an integer from -9223372036854775808 to 18446744073709551615; write a longer one as a text";

/// Integers of a text that do not fit into 64 bits, by the bits of the floats that they are read as.
pub(crate) struct LargeIntegers<'t>(BTreeMap<u64, &'t str>);

impl<'t> LargeIntegers<'t> {
    /// Finds the integers beyond 64 bits in `text`, which is JSON.
    pub(crate) fn of(text: &'t str) -> Self {
        let mut found = BTreeMap::new();
        let mut rest = text;
        while let Some(start) = rest.find(|letter: char| matches!(letter, '"' | '-' | '0'..='9')) {
            let literal = &rest[start..];
            let length =
                if literal.starts_with('"') { string_length(literal) } else { number_length(literal) };
            let (literal, behind) = literal.split_at(length);
            if is_beyond_64_bits(literal)
                && let Ok(float) = literal.parse::<f64>()
            {
                found.insert(float.to_bits(), literal);
            }
            rest = behind;
        }
        Self(found)
    }

    /// Checks the columns of a row of the text.
    ///
    /// # Errors
    /// [`DataError::WrongType`] if one of them has such an integer, at any depth.
    pub(crate) fn check_row(
        &self,
        location: &RowLocation,
        fields: &Map<String, Value>,
    ) -> Result<(), DataError> {
        fields.iter().try_for_each(|(column, value)| self.check(location, column, value))
    }

    /// Checks a value of the text.
    ///
    /// # Errors
    /// [`DataError::WrongType`] if it has such an integer, at any depth.
    pub(crate) fn check(&self, location: &RowLocation, column: &str, value: &Value) -> Result<(), DataError> {
        if self.0.is_empty() {
            return Ok(());
        }
        match value {
            Value::Number(number) if number.is_f64() => {
                let bits = number.as_f64().map(f64::to_bits);
                let Some(literal) = bits.and_then(|bits| self.0.get(&bits)) else { return Ok(()) };
                Err(DataError::WrongType {
                    location: location.clone(),
                    column: column.to_owned(),
                    got: literal.chars().take(80).collect(),
                    expected: EXPECTED,
                })
            }
            Value::Array(values) => values.iter().try_for_each(|value| self.check(location, column, value)),
            Value::Object(fields) => fields
                .iter()
                .try_for_each(|(name, value)| self.check(location, &format!("{column}.{name}"), value)),
            _ => Ok(()),
        }
    }
}

/// Whether a value has a float that may have been an integer beyond 64 bits.
pub(crate) fn may_be_rounded(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.is_f64() && number.as_f64().is_some_and(|float| float.abs() >= LEAST),
        Value::Array(values) => values.iter().any(may_be_rounded),
        Value::Object(fields) => fields.values().any(may_be_rounded),
        _ => false,
    }
}

/// Returns the length in bytes of the JSON number at the start of a text.
fn number_length(text: &str) -> usize {
    text.bytes().take_while(|byte| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E')).count()
}

fn is_beyond_64_bits(literal: &str) -> bool {
    let digits = literal.strip_prefix('-').unwrap_or(literal);
    let is_integer = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_integer && literal.parse::<i64>().is_err() && literal.parse::<u64>().is_err()
}
