//! A regular expression: present, or with a capture that equals the ground truth.

use regex::{Regex, RegexBuilder};
use serde_json::Value;

use super::{RewardError, RewardFunction, Sample, ground_truths, one_if};

/// Bytes a compiled pattern may take; a counted repetition of counted repetitions is refused instead of
/// built.
const MAX_COMPILED_BYTES: usize = 4 << 20;

/// 1 when the pattern is found and, with a capture, when its **last** match captured a ground truth; else 0.
///
/// The `regex` crate's dialect: time is linear in the text whatever the pattern, and look-around and
/// back-references do not exist. `^` and `$` are the ends of the text unless the pattern says `(?m)`.
#[derive(Clone, Debug)]
pub struct Pattern {
    regex: Regex,
    capture: Option<usize>,
}

impl Pattern {
    /// Compiles `pattern`. `capture` names or numbers the group that is compared, both sides trimmed, with
    /// the ground truth; without it only presence counts.
    ///
    /// # Errors
    /// [`RewardError::Pattern`] and [`RewardError::NoSuchGroup`].
    pub fn new(pattern: &str, capture: Option<&str>) -> Result<Self, RewardError> {
        let regex = compile(pattern)?;
        let capture = capture.map(|group| group_idx(&regex, group)).transpose()?;
        Ok(Self { regex, capture })
    }

    /// Compiles `pattern` and compares its group `answer`, else its first group, else the whole match.
    ///
    /// # Errors
    /// [`RewardError::Pattern`].
    pub fn answer(pattern: &str) -> Result<Self, RewardError> {
        let regex = compile(pattern)?;
        let named = regex.capture_names().position(|name| name == Some("answer"));
        let capture = Some(named.unwrap_or(usize::from(regex.captures_len() > 1)));
        Ok(Self { regex, capture })
    }
}

pub(super) fn compile(pattern: &str) -> Result<Regex, RewardError> {
    let built = RegexBuilder::new(pattern).size_limit(MAX_COMPILED_BYTES).build();
    built.map_err(|source| RewardError::Pattern { pattern: pattern.to_owned(), source: Box::new(source) })
}

fn group_idx(regex: &Regex, group: &str) -> Result<usize, RewardError> {
    let by_name = regex.capture_names().position(|name| name == Some(group));
    let by_number = || group.parse().ok().filter(|&idx: &usize| idx < regex.captures_len());
    by_name.or_else(by_number).ok_or_else(|| RewardError::NoSuchGroup {
        pattern: regex.as_str().to_owned(),
        group: group.to_owned(),
    })
}

impl RewardFunction for Pattern {
    fn score(&self, sample: &Sample<'_>) -> Result<f64, RewardError> {
        let Some(group) = self.capture else { return Ok(one_if(self.regex.is_match(sample.completion))) };
        let truths = ground_truths(sample.ground_truth)?;
        let captured = self.regex.captures_iter(sample.completion).last().and_then(|found| found.get(group));
        Ok(one_if(
            captured.is_some_and(|text| truths.iter().any(|truth| truth.trim() == text.as_str().trim())),
        ))
    }

    fn range(&self) -> (f64, f64) {
        (0.0, 1.0)
    }

    fn check_ground_truth(&self, ground_truth: &Value) -> Result<(), RewardError> {
        if self.capture.is_some() { ground_truths(ground_truth).map(drop) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::sample;
    use super::*;

    #[test]
    fn without_a_capture_presence_is_enough() {
        let pattern = Pattern::new(r"\d+", None).unwrap();
        assert_eq!(pattern.score(&sample("a 1", &json!(null))).unwrap(), 1.0);
        assert_eq!(pattern.score(&sample("a", &json!(null))).unwrap(), 0.0);
    }

    #[test]
    fn the_last_capture_is_compared() {
        for capture in ["1", "answer"] {
            let pattern = Pattern::new(r"<answer>(?<answer>[^<]*)</answer>", Some(capture)).unwrap();
            let text = "<answer>1</answer><answer> 2 </answer>";
            assert_eq!(pattern.score(&sample(text, &json!("2"))).unwrap(), 1.0);
            assert_eq!(pattern.score(&sample(text, &json!("1"))).unwrap(), 0.0);
        }
    }

    #[test]
    fn the_answer_is_a_named_group_else_the_first_else_the_match() {
        for pattern in ["(x)(?<answer>[0-9])", "x([0-9])(y?)", "[0-9]"] {
            let score =
                |truth| Pattern::answer(pattern).unwrap().score(&sample("x1y x2y", &json!(truth))).unwrap();
            assert_eq!((score("2"), score("1")), (1.0, 0.0), "{pattern}");
        }
    }

    #[test]
    fn patterns_that_cannot_be_bounded_are_refused() {
        for pattern in ["(", r"(a)\1", "(?=a)", "((a{1000}){1000}){1000}"] {
            assert!(matches!(Pattern::new(pattern, None), Err(RewardError::Pattern { .. })), "{pattern}");
        }
        assert!(matches!(Pattern::new("(a)", Some("2")), Err(RewardError::NoSuchGroup { .. })));
    }

    #[test]
    fn the_classic_exponential_pattern_is_answered_at_once() {
        let pattern = Pattern::new("^(a+)+$", None).unwrap();
        let text = format!("{}b", "a".repeat(100_000));
        assert_eq!(pattern.score(&sample(&text, &json!(null))).unwrap(), 0.0);
    }
}
