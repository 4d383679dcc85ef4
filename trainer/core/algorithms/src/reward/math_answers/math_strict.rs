//! MATH-style rewards by text: the last boxed answer equals the ground truth after LaTeX is normalised.
//!
//! ```text
//! completion -> boxed::last_answer -> normalise::are_equivalent(answer, ground truth) -> 0 or 1
//! ```
//! The rules are those of the MATH benchmark's own grader (Hendrycks et al., arXiv 2103.03874), which verl's
//! `utils/reward_score/math_reward.py` uses: equality of normalised text, no algebra.

mod normalise;

pub use normalise::{are_equivalent, canonical};

use std::borrow::Cow;
use std::sync::Arc;

use super::boxed::last_answer;
use super::truth::{any_stated_truth, stated_answer};
use crate::reward::{DeclaredReward, Given, RewardError, RewardFunction, Sample, one_if};

/// 1 when the last `\boxed{..}` (or `\boxed ..`, `\fbox{..}`) is the normalised text of a ground truth; else
/// 0. The ground truth is read by [`stated_answer`].
#[derive(Clone, Copy, Debug, Default)]
pub struct MathStrict;

impl DeclaredReward for MathStrict {
    const NAME: &'static str = "MathStrict";
    const DOC: &'static str = "1 when the last `\\boxed{}` equals the ground truth as normalised text, without algebra \
         (verl's `math_reward`).";

    fn build(_: &Given<'_>) -> Result<Arc<dyn RewardFunction>, RewardError> {
        Ok(Arc::new(Self))
    }
}

impl RewardFunction for MathStrict {
    fn score(&self, sample: &Sample<'_>) -> Result<f64, RewardError> {
        let answer = last_answer(sample.completion);
        let equals = |truth: &str| answer.is_some_and(|answer| are_equivalent(answer, stated_answer(truth)));
        any_stated_truth(sample.ground_truth, equals).map(one_if)
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

    use super::*;
    use crate::reward::sample;

    #[test]
    fn the_boxed_answer_is_compared_and_nothing_else() {
        let score = |text: &str| MathStrict.score(&sample(text, &json!("\\frac{1}{2}"))).unwrap();
        assert_eq!(score("so $x = \\boxed{\\dfrac12}$."), 1.0);
        assert_eq!(score("\\boxed{1/2}"), 1.0);
        assert_eq!(score("\\boxed{1} no, \\boxed{0.5}"), 1.0);
        assert_eq!(score("\\boxed{\\frac{1}{2}} no, \\boxed{1}"), 0.0);
        assert_eq!(score("the answer is \\frac{1}{2}"), 0.0);
        assert_eq!(score("\\boxed{\\frac{1}{2}"), 0.0);
    }

    #[test]
    fn a_whole_solution_is_a_ground_truth() {
        let truth = json!("Halves, so the answer is $\\boxed{\\frac{1}{2}}$.");
        assert_eq!(MathStrict.score(&sample("\\boxed{\\dfrac12}", &truth)).unwrap(), 1.0);
    }
}
