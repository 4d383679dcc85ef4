//! A single problem of a manifest, with its position.

use std::fmt;

use serde::Serialize;
use serde_json::Value;

/// A single problem of a manifest.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    /// Path of the field, such as `spec.rollout.topP` or `spec.rewards.functions[1].pattern`; empty for the
    /// whole text.
    pub path: String,
    /// Description of the problem.
    pub message: String,
    /// Invalid value, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
    /// Allowed range or values.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed: Option<String>,
    /// Field or choice that was probably meant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub did_you_mean: Option<String>,
    /// Line in the text, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
    /// Column in the text, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub column: Option<u64>,
}

/// Longest value in a message, in characters.
const MAX_SHOWN_LEN: usize = 80;

impl Problem {
    pub(crate) fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { path: path.into(), message: message.into(), ..Self::default() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let (Some(line), Some(column)) = (self.line, self.column) {
            write!(f, "{line}:{column}: ")?;
        }
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)?;
        if let Some(value) = self.value.as_ref().filter(|value| !value.is_object()) {
            write!(f, "; got {}", shortened(&value.to_string()))?;
        }
        if let Some(allowed) = &self.allowed {
            write!(f, "; allowed: {allowed}")?;
        }
        if let Some(meant) = &self.did_you_mean {
            write!(f, "; did you mean {meant}?")?;
        }
        Ok(())
    }
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(MAX_SHOWN_LEN) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}
