//! The verdict of a reward function on a sample, and its status: computed, failed or timed out.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The status of a sample's reward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RewardStatus {
    /// Every function returned a value.
    #[default]
    Ok,
    /// Every function returned a value, and one says that the completion itself is wrong, for example because
    /// its code does not compile. The reward counts like any other.
    Wrong,
    /// A function ran past its time limit: there is no verdict.
    Timeout,
    /// A function panicked, reported an error or could not be reached: there is no verdict.
    Infra,
}

impl RewardStatus {
    /// All statuses, in the order of their codes.
    pub const ALL: [Self; 4] = [Self::Ok, Self::Wrong, Self::Timeout, Self::Infra];

    /// Whether the reward is a judgement of the completion.
    pub fn is_verdict(self) -> bool {
        matches!(self, Self::Ok | Self::Wrong)
    }

    /// Name of the status in metrics and records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Wrong => "wrong",
            Self::Timeout => "timeout",
            Self::Infra => "infra",
        }
    }
}

/// Verdicts on one sample, by the name of the function that requested them.
pub type Verdicts = BTreeMap<String, Verdict>;

/// The verdict of one function on one sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// Whether there is a judgement, and if not why.
    pub status: RewardStatus,
    /// Unweighted value; 0 without a judgement.
    pub value: f64,
    /// Message for users: why there is no verdict, or why the completion is wrong.
    pub message: Option<String>,
}

impl Verdict {
    /// Makes a judgement.
    pub fn ok(value: f64) -> Self {
        Self { status: RewardStatus::Ok, value, message: None }
    }

    /// Makes the judgement that the completion itself is wrong.
    pub fn wrong(value: f64, message: impl Into<String>) -> Self {
        Self { status: RewardStatus::Wrong, value, message: Some(message.into()) }
    }

    /// Reports that there was no judgement within the time limit.
    pub fn timeout(message: impl Into<String>) -> Self {
        Self { status: RewardStatus::Timeout, value: 0.0, message: Some(message.into()) }
    }

    /// Reports that there was no judgement, by no fault of the completion.
    pub fn infra(message: impl Into<String>) -> Self {
        Self { status: RewardStatus::Infra, value: 0.0, message: Some(message.into()) }
    }
}

/// Empty verdicts, for samples without external reward functions.
pub static NO_VERDICTS: Verdicts = BTreeMap::new();
