//! The status of a sample as servers and functions report it, and the verdict that follows. Protocols are
//! elsewhere.

use rlt_core::reward::Verdict;
use serde::Deserialize;

/// The status of a sample in words.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Status {
    #[default]
    Ok,
    Wrong,
    Timeout,
    Infra,
}

impl Status {
    /// The verdict of `judge`, such as `the server`, with its own message where it has one. `None` where a
    /// value is missing that `Ok` needs.
    pub(super) fn verdict(self, value: Option<f64>, message: Option<String>, judge: &str) -> Option<Verdict> {
        let words = |message: Option<String>, otherwise: &str| {
            message.unwrap_or_else(|| format!("{judge} {otherwise}"))
        };
        Some(match self {
            Self::Ok => Verdict { message, ..Verdict::ok(value?) },
            Self::Wrong => Verdict::wrong(value.unwrap_or(0.0), words(message, "says so")),
            Self::Timeout => Verdict::timeout(words(message, "ran out of time")),
            Self::Infra => Verdict::infra(words(message, "could not judge")),
        })
    }
}
