//! The status of a reward: computed, failed or timed out.

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
