//! Reasons for which a configuration is refused.

/// Reason why a configuration was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelConfigError {
    /// The document is not a JSON object.
    #[error("model configuration: expected a JSON object, got {got}")]
    NotAnObject {
        /// The JSON type found.
        got: &'static str,
    },
    /// The model is of a family that the trainer does not run.
    #[error("model configuration: unknown architecture {got:?}; {parts}; known architectures are {known}")]
    UnknownArchitecture {
        /// Architecture that the configuration names.
        got: String,
        /// Description of the parts of the model that are not supported.
        parts: String,
        /// Known class names, separated by commas.
        known: String,
    },
    /// A required field is absent.
    #[error("model configuration: field `{field}` is missing")]
    MissingField {
        /// The absent field.
        field: String,
    },
    /// A field has the wrong type or is out of range.
    #[error("model configuration: field `{field}`: expected {expected}, got {got}")]
    InvalidField {
        /// Name of the field in `config.json`.
        field: String,
        /// Values that would have been accepted.
        expected: String,
        /// The JSON value found.
        got: String,
    },
    /// A field asks for something that is not implemented and would change computed values.
    #[error("model configuration: field `{field}`: {got} is not supported, supported: {supported}")]
    Unsupported {
        /// Name of the field in `config.json`.
        field: String,
        /// The JSON value found.
        got: String,
        /// Values that are supported.
        supported: String,
    },
}
