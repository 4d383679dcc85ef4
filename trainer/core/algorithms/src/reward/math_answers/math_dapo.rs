//! DAPO's reward: the last line `Answer: ..`, normalised as Minerva's answers are, +1 or -1.

mod normalise;

use std::borrow::Cow;
use std::sync::Arc;

use regex::Regex;

use super::boxed::braced;
use super::gsm8k::last_characters;
use super::truth::{any_stated_truth, stated_answer};
use crate::reward::{DeclaredReward, Given, RewardError, RewardFunction, Sample, pattern};
use normalise::normalised;

/// Number of characters at the end of a completion that are searched (verl's limit).
const SEARCHED_CHARACTERS: usize = 300;
/// Number of characters at the end of a completion that are searched for a box (verl's limit).
const SEARCHED_FOR_BOX: usize = 100;

/// 1 when the text after the last `Answer:` in the last 300 characters equals a ground truth, else -1.
/// Without `Answer:` the content of the last `\boxed{..}` in the last 100 characters has to be the text of a
/// ground truth.
///
/// Both are normalised as in verl's `utils/reward_score/math_dapo.py`, whose rules are Minerva's (Lewkowycz
/// et al., arXiv 2206.14858). The ground truth is read by [`stated_answer`] first.
#[derive(Clone, Debug)]
pub struct MathDapo {
    answer: Regex,
}

impl MathDapo {
    /// Compiles the pattern of the line with the answer.
    ///
    /// # Errors
    /// [`RewardError::Pattern`], which would be a bug of this module.
    pub fn new() -> Result<Self, RewardError> {
        let source = r"(?i)Answer\s*:\s*([^\n]+)";
        let refused =
            |error: Box<regex::Error>| RewardError::Pattern { pattern: source.to_owned(), source: error };
        Ok(Self { answer: pattern::linear(source).map_err(refused)? })
    }

    fn stated<'a>(&self, completion: &'a str) -> Option<&'a str> {
        let end = last_characters(completion, SEARCHED_CHARACTERS);
        Some(self.answer.captures_iter(end).last()?.get(1)?.as_str())
    }
}

impl DeclaredReward for MathDapo {
    const NAME: &'static str = "MathDapo";
    const DOC: &'static str = "1 when the text after the last `Answer:` equals the ground truth after normalisation, else -1 \
         (verl's `math_dapo`, for DAPO-Math-17k).";

    fn build(_: &Given<'_>) -> Result<Arc<dyn RewardFunction>, RewardError> {
        Ok(Arc::new(Self::new()?))
    }
}

impl RewardFunction for MathDapo {
    fn score(&self, sample: &Sample<'_>) -> Result<f64, RewardError> {
        let answer = self.stated(sample.completion).map(normalised);
        let boxed = last_box(sample.completion);
        let equals = |truth: &str| {
            let truth = stated_answer(truth);
            answer.as_ref().map_or(boxed == Some(truth), |answer| *answer == normalised(truth))
        };
        Ok(if any_stated_truth(sample.ground_truth, equals)? { 1.0 } else { -1.0 })
    }

    fn range(&self) -> (f64, f64) {
        (-1.0, 1.0)
    }

    fn answer<'a>(&self, completion: &'a str) -> Option<Cow<'a, str>> {
        let stated = self.stated(completion).map(|answer| normalised(answer).into());
        stated.or_else(|| last_box(completion).map(Cow::Borrowed))
    }
}

/// Returns the content of the last `\boxed{..}` at the end of a completion; `None` if it never closes.
fn last_box(completion: &str) -> Option<&str> {
    let end = last_characters(completion, SEARCHED_FOR_BOX);
    let start = end.rfind("\\boxed{")?;
    braced(&end[start + "\\boxed".len()..])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::reward::sample;

    fn score(completion: &str, truth: &str) -> f64 {
        MathDapo::new().unwrap().score(&sample(completion, &json!(truth))).unwrap()
    }

    #[test]
    fn the_last_answer_line_earns_one_and_everything_else_minus_one() {
        assert_eq!(score("Some steps.\n\nAnswer: 34", "34"), 1.0);
        assert_eq!(score("answer :\n $34$.", "34"), 1.0);
        assert_eq!(score("Answer: \\boxed{34}", "34"), 1.0);
        assert_eq!(score("Answer: 1\nAnswer: 34", "34"), 1.0);
        assert_eq!(score("Answer: 34\nAnswer: 1", "34"), -1.0);
        assert_eq!(score("", "34"), -1.0);
    }

    /// Values of verl's `math_dapo.compute_score`.
    #[test]
    fn a_box_counts_if_there_is_no_answer_line() {
        assert_eq!(score("So \\boxed{34}.", "34"), 1.0);
        assert_eq!(score("\\boxed{34} or \\boxed{1}", "34"), -1.0);
        assert_eq!(score("Answer: 1\nor \\boxed{34}", "34"), -1.0);
        assert_eq!(score("\\boxed{34.}", "34"), -1.0);
        assert_eq!(score("\\boxed{34", "34"), -1.0);
        assert_eq!(score(&format!("\\boxed{{34}}{}", "x".repeat(90)), "34"), 1.0);
        assert_eq!(score(&format!("\\boxed{{34}}{}", "x".repeat(91)), "34"), -1.0);
        assert_eq!(MathDapo::new().unwrap().answer("So \\boxed{34}.").as_deref(), Some("34"));
    }

    #[test]
    fn an_answer_before_the_last_300_characters_does_not_count() {
        let padded = |num: usize| format!("Answer: 5\n{}", "x".repeat(num));
        assert_eq!(score(&padded(290), "5"), 1.0);
        assert_eq!(score(&padded(291), "5"), -1.0);
    }
}
