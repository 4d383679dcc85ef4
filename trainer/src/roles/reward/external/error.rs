//! Reasons for which a function that is computed elsewhere cannot be set up.

use rlt_api::spec::RewardKind;

use super::endpoint::EndpointError;
use super::module::ModuleError;

/// A function that is computed elsewhere cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum ExternalError {
    /// A field that the function's kind needs is missing.
    #[error("kind {kind:?} needs {field}")]
    MissingField {
        /// The function's kind.
        kind: RewardKind,
        /// The missing field.
        field: &'static str,
    },
    /// The settings of the function's server are invalid.
    #[error("failed to prepare its server")]
    Endpoint(#[from] EndpointError),
    /// The function's module cannot be loaded or run.
    #[error("failed to prepare its module")]
    Wasm(#[from] ModuleError),
    /// The pattern for a judge's score is not a regular expression.
    #[error("failed to compile judge.pattern {pattern:?}: expected a regular expression with a group")]
    Pattern {
        /// The pattern as it is written in the manifest.
        pattern: String,
        /// The parser's error; `None` if the pattern has no group.
        #[source]
        source: Option<Box<regex::Error>>,
    },
    /// The rubric is not a template.
    #[error("failed to compile judge.rubric")]
    Rubric(#[source] rlt_template::Error),
    /// No thread could be started.
    #[error("failed to start the thread that talks to reward servers")]
    Thread(#[source] std::io::Error),
}
