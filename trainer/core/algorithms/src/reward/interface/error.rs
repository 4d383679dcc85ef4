//! Errors in building and calling reward functions.

/// An error in building or calling a reward function.
#[derive(Debug, thiserror::Error)]
pub enum RewardError {
    /// The pattern is not a regular expression, or is too large.
    #[error("compile pattern {pattern:?}: expected a regular expression")]
    Pattern {
        /// Pattern in the manifest.
        pattern: String,
        /// Error of the parser.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A pattern with look-around or back-references took too many steps on a text.
    #[error("match a pattern with look-around or back-references: {message}")]
    Backtracking {
        /// Message of the regex engine.
        message: String,
    },
    /// The document is not a JSON schema.
    #[error("compile a JSON schema: {message}")]
    Schema {
        /// Message of the validator.
        message: String,
    },
    /// A setting that the function needs is missing.
    #[error("expected {field}")]
    MissingSetting {
        /// Field of the setting in the manifest.
        field: &'static str,
    },
    /// A numeric setting is outside its range.
    #[error("configure the {function} reward: {field} is {value}, expected {expected}")]
    Setting {
        /// Name of the function.
        function: &'static str,
        /// Name of the setting.
        field: &'static str,
        /// Value that was given.
        value: String,
        /// Allowed values, in words.
        expected: &'static str,
    },
    /// There is no external verdict on the sample.
    #[error("judge by function {name:?}: {message}")]
    NoVerdict {
        /// Name of the function.
        name: String,
        /// Reason that there is no verdict.
        message: String,
    },
    /// The row has no valid unit tests.
    #[error("read the tests in the ground truth: {message}")]
    Tests {
        /// Message of the parser of tests.
        message: String,
    },
    /// The row has no usable ground truth.
    #[error("read the ground truth: expected a string, a number, a boolean or a list of them, got {got}")]
    GroundTruth {
        /// Ground truth as JSON, shortened.
        got: String,
    },
}
