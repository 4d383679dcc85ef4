//! The identity of the run that a checkpoint belongs to.
//!
//! It is in the state of every checkpoint, and in the file `run.json` of a prefix of copies. Checkpoints and
//! prefixes of releases that wrote no identity have none, and belong to whoever names them.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Checkpoint, CheckpointError};

/// The field of a checkpoint's state with the identity of its run.
const STATE_FIELD: &str = "run";
/// Characters of a value that an error quotes.
const MAX_QUOTED: usize = 100;

/// The identity of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunIdentity {
    /// Namespace and name of the job, `default/math`, or the name alone outside of a cluster.
    pub run: String,
    /// The resolved `spec` without the fields that a continuation of the run may change.
    pub spec: Value,
}

impl RunIdentity {
    /// Says how the run `other` differs from this one, in words that continue a sentence; `None` for the same
    /// run.
    pub(crate) fn difference(&self, other: &Self) -> Option<String> {
        if self.run != other.run {
            return Some(format!("it belongs to the job `{}`, this job is `{}`", other.run, self.run));
        }
        let (path, there, here) = first_difference("spec".to_owned(), &other.spec, &self.spec)?;
        Some(format!(
            "it belongs to a run of `{}` with other settings ({path}: {there} there, {here} here)",
            other.run
        ))
    }

    /// The first setting below the JSON pointer `at` that `saved` and this run have with different values:
    /// its path, the saved value, and this run's.
    pub(crate) fn differing_setting(&self, saved: &Self, at: &str) -> Option<(String, String, String)> {
        let root = format!("spec{}", at.replace('/', "."));
        first_difference(root, saved.spec.pointer(at)?, self.spec.pointer(at)?)
    }
}

/// The first leaf that differs, with its path. A field that only one side has is no difference: releases add
/// and remove fields, with defaults that act as before.
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
    /// The identity of the run that saved the checkpoint; `None` for one of a release that wrote none.
    ///
    /// # Errors
    /// [`CheckpointError::Parse`] for an identity of another form.
    pub fn identity(&self) -> Result<Option<RunIdentity>, CheckpointError> {
        self.state_field(STATE_FIELD)
    }
}
