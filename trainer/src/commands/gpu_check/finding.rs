//! Findings of checks, and questions of several checks about the device and their errors.

use rlt_torch::cuda;
use serde_json::{Map, Value};

/// Part of the name of an emulated device, whose times mean nothing.
const STAND_IN: &str = "Stand-in";
/// Bytes at the end of a failed child's standard error that its finding repeats.
pub(super) const MAX_STDERR: usize = 1500;

/// Outcome of a check, or of a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Passed,
    Failed,
    Skipped,
}

/// A line of a check's output.
pub(super) struct Finding {
    pub(super) status: Status,
    pub(super) figures: Map<String, Value>,
}

/// An error that ends a check early.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Receives each finding of a check as soon as it is made.
pub(super) type Report<'a> = dyn FnMut(Finding) -> Result<(), Failure> + 'a;

impl Finding {
    /// Makes a finding from figures, which `holds` if they are as expected.
    pub(super) fn new<const N: usize>(holds: bool, figures: [(&str, Value); N]) -> Self {
        Self { status: if holds { Status::Passed } else { Status::Failed }, figures: map(figures) }
    }

    /// Creates the finding of a skipped check, with the reason.
    pub(super) fn skipped(reason: impl Into<String>) -> Self {
        Self { status: Status::Skipped, figures: map([("reason", reason.into().into())]) }
    }

    /// Adds further figures to the finding.
    pub(super) fn with<const N: usize>(mut self, figures: [(&str, Value); N]) -> Self {
        self.figures.extend(map(figures));
        self
    }
}

/// Returns the name of the first GPU; `None` without one.
pub(super) fn device_name() -> Option<String> {
    cuda::gpus().ok()?.first().map(|gpu| gpu.name.clone())
}

/// Returns the larger of two errors, or NaN if either is NaN, which `f64::max` would hide.
pub(super) fn worse(one: f64, other: f64) -> f64 {
    if one.is_nan() || one > other { one } else { other }
}

pub(super) fn is_stand_in() -> bool {
    device_name().is_some_and(|name| name.contains(STAND_IN))
}

/// Formats an error with its causes.
pub(super) fn error_text(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

pub(super) fn map<const N: usize>(figures: [(&str, Value); N]) -> Map<String, Value> {
    figures.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Returns the last [`MAX_STDERR`] bytes of a process's output, without surrounding whitespace.
pub(super) fn last(text: &str) -> &str {
    text[text.ceil_char_boundary(text.len().saturating_sub(MAX_STDERR))..].trim()
}
