//! One golden case: arguments from JSON, and a comparison with the expected results.

use std::fmt;
use std::path::Path;

use rlt_core::rows::Rows;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Largest difference allowed, absolute below 1 and relative above.
pub(crate) const TOLERANCE: f64 = 1e-9;

/// Result of a comparison; the error is in words.
pub(crate) type Outcome = Result<(), String>;

/// A call of one of verl's functions and its result.
pub(crate) struct Case {
    origin: String,
    json: Value,
}

/// Reads all cases of a golden file.
pub(crate) fn read(path: &Path) -> Vec<Case> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let file: Value =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let cases = file["cases"].as_array().unwrap_or_else(|| panic!("{} holds no cases", path.display()));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    cases
        .iter()
        .enumerate()
        .map(|(index, json)| Case { origin: format!("{name} case {index}"), json: json.clone() })
        .collect()
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.origin, self.function())
    }
}

impl Case {
    /// Makes a case that is in no file.
    pub(crate) fn of(json: Value) -> Self {
        Self { origin: "inline".to_owned(), json }
    }

    /// Returns the name of verl's function that was called.
    pub(crate) fn function(&self) -> &str {
        self.json["fn"].as_str().expect("fn")
    }

    /// Returns an argument as JSON; null if it is absent.
    pub(crate) fn arg(&self, name: &str) -> &Value {
        &self.json["args"][name]
    }

    /// Returns an expected result as JSON; null if it is absent.
    pub(crate) fn expected(&self, name: &str) -> &Value {
        &self.json["expect"][name]
    }

    /// Returns a numeric argument, or panics if it is absent.
    pub(crate) fn number(&self, name: &str) -> f64 {
        self.optional(name).unwrap_or_else(|| panic!("{self}: argument {name} is no number"))
    }

    /// Returns a numeric argument; `None` if it is absent.
    pub(crate) fn optional(&self, name: &str) -> Option<f64> {
        self.arg(name).as_f64()
    }

    /// Returns a boolean argument, or panics if it is absent.
    pub(crate) fn flag(&self, name: &str) -> bool {
        self.arg(name).as_bool().unwrap_or_else(|| panic!("{self}: argument {name} is no truth value"))
    }

    /// Returns a text argument, or panics if it is absent.
    pub(crate) fn text(&self, name: &str) -> &str {
        self.arg(name).as_str().unwrap_or_else(|| panic!("{self}: argument {name} is no string"))
    }

    /// A matrix or vector that must be there, flat.
    pub(crate) fn values(&self, name: &str) -> Vec<f64> {
        flat(self.arg(name))
    }

    /// Converts the padded rows of a mask to ragged rows of full width whose tails are masked.
    pub(crate) fn rows(&self, mask: &str) -> Rows {
        let matrix =
            self.arg(mask).as_array().unwrap_or_else(|| panic!("{self}: argument {mask} is no matrix"));
        let masks: Vec<Vec<bool>> =
            matrix.iter().map(|row| flat(row).iter().map(|value| *value != 0.0).collect()).collect();
        Rows::from_masks(masks.iter().map(Vec::as_slice))
    }

    /// Returns unmasked rows of full width, as wide as those of the argument `like`.
    pub(crate) fn unmasked_rows(&self, like: &str) -> Rows {
        Rows::unmasked(self.arg(like).as_array().expect("matrix").iter().map(|row| flat(row).len()))
    }

    /// Converts group names to the index of their first row.
    pub(crate) fn groups(&self, name: &str) -> Vec<usize> {
        let names = self.arg(name).as_array().expect("groups");
        names.iter().map(|name| names.iter().position(|other| other == name).expect("itself")).collect()
    }

    /// Compares a number, vector or matrix with the expected one of this name.
    pub(crate) fn expect(&self, name: &str, got: &[f64]) -> Outcome {
        compare(name, self.expected(name), got, TOLERANCE)
    }
}

/// Compares `got` with `expected`, which may be nested, to `tolerance`.
pub(crate) fn compare(name: &str, expected: &Value, got: &[f64], tolerance: f64) -> Outcome {
    let expected = flat(expected);
    if expected.len() != got.len() {
        return Err(format!("{name} has {} values, expected {}", got.len(), expected.len()));
    }
    for (at, (got, expected)) in got.iter().zip(&expected).enumerate() {
        let close = (got - expected).abs() <= tolerance * expected.abs().max(1.0);
        if !close {
            return Err(format!("{name}[{at}] is {got}, expected {expected}"));
        }
    }
    Ok(())
}

/// Parses a manifest's value: a choice by its name, or parameters by theirs.
pub(crate) fn named<T: DeserializeOwned>(value: impl Into<Value>) -> Result<T, String> {
    serde_json::from_value(value.into()).map_err(|error| error.to_string())
}

/// Returns all numbers of a nested value in reading order.
pub(crate) fn flat(value: &Value) -> Vec<f64> {
    match value {
        Value::Array(values) => values.iter().flat_map(flat).collect(),
        Value::Bool(flag) => vec![f64::from(u8::from(*flag))],
        _ => vec![value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))],
    }
}
