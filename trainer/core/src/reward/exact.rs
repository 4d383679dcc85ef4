//! Exact equality of completion and ground truth.

use serde_json::Value;

use super::{RewardError, RewardFunction, Sample, ground_truths, one_if};

/// 1 when the completion, without surrounding white space, is a ground truth; else 0.
#[derive(Clone, Copy, Debug, Default)]
pub struct Exact {
    /// Upper and lower case count as equal (Unicode lower-casing).
    pub ignore_case: bool,
}

impl RewardFunction for Exact {
    fn score(&self, sample: &Sample<'_>) -> Result<f64, RewardError> {
        let completion = sample.completion.trim();
        let truths = ground_truths(sample.ground_truth)?;
        Ok(one_if(truths.iter().any(|truth| self.equal(completion, truth.trim()))))
    }

    fn range(&self) -> (f64, f64) {
        (0.0, 1.0)
    }

    fn check_ground_truth(&self, ground_truth: &Value) -> Result<(), RewardError> {
        ground_truths(ground_truth).map(drop)
    }
}

impl Exact {
    fn equal(&self, left: &str, right: &str) -> bool {
        left == right || (self.ignore_case && left.to_lowercase() == right.to_lowercase())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::sample;
    use super::*;

    #[test]
    fn only_surrounding_space_is_forgiven() {
        let score = |text: &str| Exact::default().score(&sample(text, &json!("a b"))).unwrap();
        assert_eq!([" a b\n", "ab", "A b", "a b c", ""].map(score), [1.0, 0.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn case_is_ignored_on_request() {
        let exact = Exact { ignore_case: true };
        assert_eq!(exact.score(&sample("PARIS", &json!(["London", "Paris"]))).unwrap(), 1.0);
    }
}
