//! Status of a sample as servers and functions report it, and the resulting verdict. Protocols are elsewhere.

use rlt_core::reward::Verdict;
use serde::Deserialize;

/// Status of a sample in an answer.
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
    /// Returns the verdict with this status and the message of the answer; without one the message is about
    /// `judge`, for example `the server`. `None` if `Ok` comes without a value.
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
