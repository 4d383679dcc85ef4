//! MATH-style rewards: the last boxed answer, equal to the ground truth after LaTeX is normalised.
//!
//! ```text
//! completion -> boxed::last_answer -> normalise::are_equivalent(answer, ground truth) -> 0 or 1
//! ```
//! The rules are those of the MATH benchmark's own grader (Hendrycks et al., arXiv 2103.03874), which verl's
//! `utils/reward_score/math_reward.py` uses: equality of normalised text, no algebra.

mod boxed;
mod normalise;

pub use boxed::last_answer;
pub use normalise::{are_equivalent, canonical};

use std::borrow::Cow;
use std::sync::Arc;

use super::{DeclaredReward, Given, RewardError, RewardFunction, Sample, any_ground_truth, one_if};

/// 1 when the last `\boxed{..}` (or `\boxed ..`, `\fbox{..}`) is equivalent to a ground truth; else 0.
#[derive(Clone, Copy, Debug, Default)]
pub struct Math;

impl DeclaredReward for Math {
    const NAME: &'static str = "Math";
    const DOC: &'static str = "1 when the last `\\boxed{}` equals the ground truth as mathematics.";

    fn build(_: &Given<'_>) -> Result<Arc<dyn RewardFunction>, RewardError> {
        Ok(Arc::new(Self))
    }
}

impl RewardFunction for Math {
    fn score(&self, sample: &Sample<'_>) -> Result<f64, RewardError> {
        let answer = last_answer(sample.completion);
        let equals = |truth: &str| answer.is_some_and(|answer| are_equivalent(answer, truth));
        any_ground_truth(sample.ground_truth, equals).map(one_if)
    }

    fn range(&self) -> (f64, f64) {
        (0.0, 1.0)
    }

    fn answer<'a>(&self, completion: &'a str) -> Option<Cow<'a, str>> {
        last_answer(completion).map(canonical)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::sample;
    use super::*;

    #[test]
    fn the_boxed_answer_is_compared_and_nothing_else() {
        let score = |text: &str| Math.score(&sample(text, &json!("\\frac{1}{2}"))).unwrap();
        assert_eq!(score("so $x = \\boxed{\\dfrac12}$."), 1.0);
        assert_eq!(score("\\boxed{1/2}"), 1.0);
        assert_eq!(score("\\boxed{1} no, \\boxed{0.5}"), 1.0);
        assert_eq!(score("\\boxed{\\frac{1}{2}} no, \\boxed{1}"), 0.0);
        assert_eq!(score("the answer is \\frac{1}{2}"), 0.0);
        assert_eq!(score("\\boxed{\\frac{1}{2}"), 0.0);
    }
}
