//! The type of a validation rule that refuses conflicts.

/// Rule of validation that refuses one or several conflicts.
pub(crate) struct ConflictRule {
    /// Path of `self` in the CEL form; see `rules::Rule`.
    pub(crate) scope: &'static str,
    /// Field at which a problem is reported, relative to the scope.
    pub(crate) at: &'static str,
    /// Fields that the rule reads, relative to the scope.
    pub(crate) reads: &'static [&'static str],
    /// Message to the user.
    pub(crate) message: &'static str,
    /// CEL expression that the API server evaluates.
    pub(crate) cel: fn() -> String,
    /// Valid values of the reported field; `None` where it is to be removed.
    pub(crate) allowed: Option<&'static str>,
}
