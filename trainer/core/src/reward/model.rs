//! A reward model's number as the value of a reward function. The model itself is the trainer's.

use super::{RewardError, RewardFunction, Sample};

/// What the reward model of the function `name` said of the sample: any number.
#[derive(Clone, Debug)]
pub struct ModelScore {
    name: String,
}

impl ModelScore {
    /// The value of the function `name`.
    pub fn of(name: &str) -> Self {
        Self { name: name.to_owned() }
    }
}

impl RewardFunction for ModelScore {
    fn score(&self, sample: &Sample<'_>) -> Result<f64, RewardError> {
        let score = sample.model_scores.get(&self.name).copied();
        score.ok_or_else(|| RewardError::NoModelScore { name: self.name.clone() })
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
    use std::collections::BTreeMap;

    use super::super::sample;
    use super::*;

    #[test]
    fn its_own_number_counts_and_no_other() {
        let scores = BTreeMap::from([("taste".to_owned(), -2.5), ("safety".to_owned(), 1.0)]);
        let sample = Sample { model_scores: &scores, ..sample("text", &serde_json::Value::Null) };
        assert_eq!(ModelScore::of("taste").score(&sample).unwrap(), -2.5);
        let error = ModelScore::of("tact").score(&sample).unwrap_err();
        assert!(error.to_string().contains("\"tact\""), "{error}");
    }
}
