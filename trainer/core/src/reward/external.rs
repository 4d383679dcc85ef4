//! Verdicts of others as the value of a reward function: reward models, servers, sandboxes. Who asks them is
//! the trainer's.

use std::collections::BTreeMap;

use super::{RewardError, RewardFunction, Sample};
use crate::types::RewardStatus;

/// Verdicts on one sample by the name of the function that asked.
pub type Verdicts = BTreeMap<String, Verdict>;

/// What one function says of one sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// Whether it is a judgement, and if not why.
    pub status: RewardStatus,
    /// The unweighted value; 0 without a judgement.
    pub value: f64,
    /// For people: why there is no judgement, or why the completion is wrong.
    pub message: Option<String>,
}

impl Verdict {
    /// A judgement.
    pub fn ok(value: f64) -> Self {
        Self { status: RewardStatus::Ok, value, message: None }
    }

    /// The judgement that the completion itself is wrong.
    pub fn wrong(value: f64, message: impl Into<String>) -> Self {
        Self { status: RewardStatus::Wrong, value, message: Some(message.into()) }
    }

    /// No judgement within the time.
    pub fn timeout(message: impl Into<String>) -> Self {
        Self { status: RewardStatus::Timeout, value: 0.0, message: Some(message.into()) }
    }

    /// No judgement, by no fault of the completion.
    pub fn infra(message: impl Into<String>) -> Self {
        Self { status: RewardStatus::Infra, value: 0.0, message: Some(message.into()) }
    }
}

/// The verdict that somebody else gave under the name of this function: any number.
#[derive(Clone, Debug)]
pub struct External {
    name: String,
}

impl External {
    /// Reads the verdicts of the function `name`.
    pub fn of(name: &str) -> Self {
        Self { name: name.to_owned() }
    }
}

impl RewardFunction for External {
    fn score(&self, sample: &Sample<'_>) -> Result<f64, RewardError> {
        let Verdict { status, value, message } = self.judge(sample);
        if status.is_verdict() {
            return Ok(value);
        }
        Err(RewardError::NoVerdict { name: self.name.clone(), message: message.unwrap_or_default() })
    }

    fn judge(&self, sample: &Sample<'_>) -> Verdict {
        let verdict = sample.verdicts.get(&self.name).cloned();
        verdict.unwrap_or_else(|| Verdict::infra("the sample was never sent to be judged"))
    }

    fn range(&self) -> (f64, f64) {
        (f64::NEG_INFINITY, f64::INFINITY)
    }

    fn compares_with_ground_truth(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    #[test]
    fn its_own_verdict_counts_and_no_other() {
        let verdicts = Verdicts::from([
            ("taste".to_owned(), Verdict::ok(-2.5)),
            ("tests".to_owned(), Verdict::wrong(0.25, "3 of 4 fail")),
            ("server".to_owned(), Verdict::timeout("late")),
        ]);
        let sample = Sample { verdicts: &verdicts, ..sample("text", &serde_json::Value::Null) };
        assert_eq!(External::of("taste").score(&sample).unwrap(), -2.5);
        assert_eq!(External::of("tests").score(&sample).unwrap(), 0.25);
        assert_eq!(External::of("tests").judge(&sample).status, RewardStatus::Wrong);
        assert_eq!(External::of("server").judge(&sample), Verdict::timeout("late"));
        let error = External::of("server").score(&sample).unwrap_err();
        assert_eq!(error.to_string(), "judge by function \"server\": late");
        assert_eq!(External::of("tact").judge(&sample).status, RewardStatus::Infra);
    }
}
