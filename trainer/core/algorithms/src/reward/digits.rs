//! Partial credit: the fraction of the answer's characters at their positions.

use std::sync::Arc;

use super::{DeclaredReward, Given, RewardError, RewardFunction, Sample, any_ground_truth};

/// Fraction of positions at which the trimmed completion has the ground truth's character, relative to the
/// longer of the two; the best ground truth counts. 1 exactly if [`super::Exact`] is 1, 0 if no position
/// agrees.
///
/// A dense alternative to `Exact` for tasks whose answers are short strings, such as the generated
/// arithmetic.
#[derive(Clone, Copy, Debug, Default)]
pub struct MatchingCharacters;

impl DeclaredReward for MatchingCharacters {
    const NAME: &'static str = "MatchingCharacters";
    const DOC: &'static str = "Share of positions at which the completion has the ground truth's character: partial \
         credit beside `Exact`.";

    fn build(_: &Given<'_>) -> Result<Arc<dyn RewardFunction>, RewardError> {
        Ok(Arc::new(Self))
    }
}

impl RewardFunction for MatchingCharacters {
    fn score(&self, sample: &Sample<'_>) -> Result<f64, RewardError> {
        let completion = sample.completion.trim();
        let mut best: f64 = 0.0;
        any_ground_truth(sample.ground_truth, |truth| {
            best = best.max(matching_share(completion, truth.trim()));
            false
        })?;
        Ok(best)
    }

    fn range(&self) -> (f64, f64) {
        (0.0, 1.0)
    }
}

fn matching_share(left: &str, right: &str) -> f64 {
    let longer = left.chars().count().max(right.chars().count());
    if longer == 0 {
        return 1.0;
    }
    let num_equal = left.chars().zip(right.chars()).filter(|(a, b)| a == b).count();
    num_equal as f64 / longer as f64
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::sample;
    use super::*;

    #[test]
    fn each_right_position_earns_its_share() {
        let score = |text: &str| MatchingCharacters.score(&sample(text, &json!("1234"))).unwrap();
        assert_eq!(["1234", "1294", "234", "12345", ""].map(score), [1.0, 0.75, 0.0, 0.8, 0.0]);
    }
}
