//! A manifest's settings of a reward function: its own fields, and the sections of the manifest that it
//! reads.

mod fields;

use std::collections::BTreeMap;

use serde_json::Value;

use super::RewardError;

/// A setting of reward functions in manifests. Every kind that has it needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Name of the field.
    pub name: &'static str,
    /// Meaning of the setting, and the kinds that have it.
    pub doc: &'static str,
    /// Type and range of allowed values.
    pub values: Values,
}

/// Type and range of a setting's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// A text of at least one character.
    Text {
        /// Largest number of characters.
        max_length: u32,
    },
    /// An integer, at least 0.
    Integer {
        /// Largest value, included.
        max: u32,
    },
    /// A JSON object with any content.
    Object,
}

/// A manifest section of a reward function, such as `server`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section {
    /// Name of the section's field.
    pub name: &'static str,
    /// Whether a manifest must give it.
    pub is_needed: bool,
}

impl Section {
    /// Declares a section that a manifest must give.
    pub const fn needed(name: &'static str) -> Self {
        Self { name, is_needed: true }
    }

    /// Declares a section with defaults.
    pub const fn optional(name: &'static str) -> Self {
        Self { name, is_needed: false }
    }
}

/// The given settings. Flattened into a reward function, they take all fields that it does not declare, and
/// reject unknown ones.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    values: BTreeMap<&'static str, Value>,
}

impl Settings {
    /// Returns the value of the setting `name`; `None` if it is not given.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.values.get(name)
    }

    /// Returns the value of a text setting.
    ///
    /// # Errors
    /// [`RewardError::MissingSetting`] if it is missing or not a text.
    pub fn text(&self, setting: &Setting) -> Result<&str, RewardError> {
        self.get(setting.name).and_then(Value::as_str).ok_or(missing(setting))
    }

    /// Returns the value of an integer setting.
    ///
    /// # Errors
    /// [`RewardError::MissingSetting`] if it is missing or not an integer.
    pub fn integer(&self, setting: &Setting) -> Result<u32, RewardError> {
        let number = self.get(setting.name).and_then(Value::as_u64);
        number.and_then(|number| number.try_into().ok()).ok_or(missing(setting))
    }

    /// Returns the value of an object setting.
    ///
    /// # Errors
    /// [`RewardError::MissingSetting`] if it is missing.
    pub fn object(&self, setting: &Setting) -> Result<&Value, RewardError> {
        self.get(setting.name).ok_or(missing(setting))
    }
}

fn missing(setting: &Setting) -> RewardError {
    RewardError::MissingSetting { field: setting.name }
}
