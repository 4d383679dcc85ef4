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
pub use normalise::are_equivalent;

use serde_json::Value;

use super::{RewardError, RewardFunction, Sample, ground_truths, one_if};

/// 1 when the last `\boxed{..}` (or `\boxed ..`, `\fbox{..}`) is equivalent to a ground truth; else 0.
#[derive(Clone, Copy, Debug, Default)]
pub struct Math;

impl RewardFunction for Math {
    fn score(&self, sample: &Sample<'_>) -> Result<f64, RewardError> {
        let truths = ground_truths(sample.ground_truth)?;
        let Some(answer) = last_answer(sample.completion) else { return Ok(0.0) };
        Ok(one_if(truths.iter().any(|truth| are_equivalent(answer, truth))))
    }

    fn range(&self) -> (f64, f64) {
        (0.0, 1.0)
    }

    fn check_ground_truth(&self, ground_truth: &Value) -> Result<(), RewardError> {
        ground_truths(ground_truth).map(drop)
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
