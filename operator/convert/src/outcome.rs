//! Outcome of the conversion of a setting.

/// Outcome of the conversion of a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The setting was converted to these fields.
    Converted(String),
    /// Nothing has to be set, for this reason.
    Inherent(String),
    /// The setting has no equivalent, for this reason.
    Absent(String),
    /// The setting, or its value, is not known for the project.
    Unknown(String),
}

/// A setting with the outcome of its conversion.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Name of the setting in the other project.
    pub key: String,
    /// Value of the setting in the other project.
    pub value: String,
    /// Outcome of the conversion.
    pub fate: Fate,
}
