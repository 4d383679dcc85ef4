//! The identity of the run that a checkpoint belongs to.
//!
//! The state of every checkpoint contains the identity, and so does the file `run.json` of a prefix with
//! copies. Checkpoints and prefixes of older releases have no identity, and any run may use them.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Checkpoint, CheckpointError};

/// Field of a checkpoint's state that contains the identity of its run.
const STATE_FIELD: &str = "run";
/// Maximum number of characters of a value that an error quotes.
const MAX_QUOTED: usize = 100;

/// Identity of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunIdentity {
    /// Namespace and name of the job, such as `default/math`; outside of a cluster only the name.
    pub run: String,
    /// Resolved `spec` without the fields that a continuation of the run may change.
    pub spec: Value,
}

impl RunIdentity {
    /// Describes how the run `other` differs from this one, as the end of a sentence; `None` for the same
    /// run.
    pub fn difference(&self, other: &Self) -> Option<String> {
        if self.run != other.run {
            return Some(format!("it belongs to the job `{}`, this job is `{}`", other.run, self.run));
        }
        let (path, there, here) = first_difference("spec".to_owned(), &other.spec, &self.spec)?;
        Some(format!(
            "it belongs to a run of `{}` with other settings ({path}: {there} there, {here} here)",
            other.run
        ))
    }

    /// Returns the first setting below the JSON pointer `at` that differs between `saved` and this run: its
    /// path, the saved value, and this run's value.
    pub fn differing_setting(&self, saved: &Self, at: &str) -> Option<(String, String, String)> {
        let root = format!("spec{}", at.replace('/', "."));
        first_difference(root, saved.spec.pointer(at)?, self.spec.pointer(at)?)
    }
}

/// Returns the first leaf that differs, with its path. A field that only one side has is not a difference,
/// because releases add and remove fields whose defaults change nothing.
fn first_difference(path: String, there: &Value, here: &Value) -> Option<(String, String, String)> {
    if let (Value::Object(there), Value::Object(here)) = (there, here) {
        return there
            .iter()
            .find_map(|(name, value)| first_difference(format!("{path}.{name}"), value, here.get(name)?));
    }
    if let (Value::Array(ones), Value::Array(others)) = (there, here)
        && ones.len() == others.len()
    {
        let mut pairs = ones.iter().zip(others).enumerate();
        return pairs.find_map(|(idx, (one, other))| first_difference(format!("{path}[{idx}]"), one, other));
    }
    let quoted = |value: &Value| value.to_string().chars().take(MAX_QUOTED).collect::<String>();
    (there != here).then(|| (path, quoted(there), quoted(here)))
}

impl Checkpoint {
    /// Returns the identity of the run that saved the checkpoint; `None` for a checkpoint of a release that
    /// wrote no identity.
    ///
    /// # Errors
    /// [`CheckpointError::Parse`] if the identity cannot be parsed.
    pub fn identity(&self) -> Result<Option<RunIdentity>, CheckpointError> {
        self.state_field(STATE_FIELD)
    }
}
