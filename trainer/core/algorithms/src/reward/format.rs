//! Check of a completion's format, whatever its content.

use std::sync::Arc;

use super::pattern::Compiled;
use super::{DeclaredReward, Given, RewardError, RewardFunction, Sample, Setting, one_if, pattern};

/// 1 when the whole completion, without surrounding white space, matches a pattern; else 0. `.` matches line
/// breaks as well: `<think>.*</think>\s*<answer>.*</answer>`.
#[derive(Clone, Debug)]
pub struct Format {
    regex: Compiled,
}

impl Format {
    /// Compiles the pattern, which must match the full text.
    ///
    /// # Errors
    /// [`RewardError::Pattern`].
    pub fn matching(pattern: &str) -> Result<Self, RewardError> {
        // Compiled alone first: a pattern such as `a)(b` must not become valid by the text around it.
        Compiled::new(pattern)?;
        Ok(Self { regex: Compiled::between(r"(?s)\A(?:", pattern, r")\z")? })
    }
}

impl DeclaredReward for Format {
    const NAME: &'static str = "Format";
    const DOC: &'static str = "1 when `pattern` matches the whole completion.";
    const SETTINGS: &'static [&'static Setting] = &[&pattern::PATTERN];

    fn build(given: &Given<'_>) -> Result<Arc<dyn RewardFunction>, RewardError> {
        Ok(Arc::new(Self::matching(given.settings.text(&pattern::PATTERN)?)?))
    }
}

impl RewardFunction for Format {
    fn score(&self, sample: &Sample<'_>) -> Result<f64, RewardError> {
        self.regex.is_match(sample.completion.trim()).map(one_if)
    }

    fn range(&self) -> (f64, f64) {
        (0.0, 1.0)
    }

    fn compares_with_ground_truth(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::sample;
    use super::*;

    #[test]
    fn the_whole_text_has_to_match() {
        let format = Format::matching("a|b.*c").unwrap();
        let score = |text: &str| format.score(&sample(text, &json!(null))).unwrap();
        assert_eq!([" a\n", "b\nc", "ab", "xa"].map(score), [1.0, 1.0, 0.0, 0.0]);
    }

    #[test]
    fn sections_are_in_order_and_self_contained() {
        let format = Format::matching(r"<think>.*</think>\s*<answer>.*</answer>").unwrap();
        let score = |text: &str| format.score(&sample(text, &json!(null))).unwrap();
        assert_eq!(score("<think>x < y</think>\n<answer>3</answer>"), 1.0);
        for wrong in ["", "<answer>3</answer><think>x</think>", "<think>x</think> so <answer>3</answer>"] {
            assert_eq!(score(wrong), 0.0, "{wrong}");
        }
    }

    /// The pattern of TRL's `think_format_reward`.
    #[test]
    fn a_pattern_with_look_ahead_runs() {
        let format = Format::matching("^<think>(?!.*<think>)(.*?)</think>.*$").unwrap();
        let score = |text: &str| format.score(&sample(text, &json!(null))).unwrap();
        assert_eq!(score("<think>\nx\n</think>\nThe answer is 7."), 1.0);
        assert_eq!(score("<think>x<think>y</think>7"), 0.0);
        assert_eq!(score("7"), 0.0);
    }

    #[test]
    fn a_pattern_cannot_escape_its_brackets() {
        assert!(matches!(Format::matching("a)|(?:b"), Err(RewardError::Pattern { .. })));
    }

    #[test]
    fn a_refusal_quotes_the_pattern_without_its_brackets() {
        // The comment hides the closing bracket.
        let commented = "(?x)a # letter";
        for refused in [commented, "(a", "a{2,1}"] {
            let Err(RewardError::Pattern { pattern, .. }) = Format::matching(refused) else {
                panic!("{refused}")
            };
            assert_eq!(pattern, refused);
        }
    }
}
