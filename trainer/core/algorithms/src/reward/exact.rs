//! Exact equality of completion and ground truth.

use std::borrow::Cow;
use std::sync::Arc;

use super::{DeclaredReward, Given, RewardError, RewardFunction, Sample, any_ground_truth, one_if};

/// 1 when the completion, without surrounding white space, is a ground truth; else 0.
#[derive(Clone, Copy, Debug, Default)]
pub struct Exact;

impl DeclaredReward for Exact {
    const NAME: &'static str = "Exact";
    const DOC: &'static str = "1 when the completion, trimmed, equals the ground truth.";

    fn build(_: &Given<'_>) -> Result<Arc<dyn RewardFunction>, RewardError> {
        Ok(Arc::new(Self))
    }
}

impl RewardFunction for Exact {
    fn score(&self, sample: &Sample<'_>) -> Result<f64, RewardError> {
        let completion = sample.completion.trim();
        any_ground_truth(sample.ground_truth, |truth| completion == truth.trim()).map(one_if)
    }

    fn range(&self) -> (f64, f64) {
        (0.0, 1.0)
    }

    fn answer<'a>(&self, completion: &'a str) -> Option<Cow<'a, str>> {
        Some(completion.trim().into())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::sample;
    use super::*;

    #[test]
    fn only_surrounding_space_is_forgiven() {
        let score = |text: &str| Exact.score(&sample(text, &json!("a b"))).unwrap();
        assert_eq!([" a b\n", "ab", "A b", "a b c", ""].map(score), [1.0, 0.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn any_of_several_ground_truths_will_do() {
        assert_eq!(Exact.score(&sample("7", &json!(["seven", 7]))).unwrap(), 1.0);
    }
}
