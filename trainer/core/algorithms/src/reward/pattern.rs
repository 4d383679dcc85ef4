//! A regular expression: present, or with a capture that equals the ground truth.

use std::borrow::Cow;
use std::sync::Arc;

use regex::{Regex, RegexBuilder};

use super::{
    DeclaredReward, Given, RewardError, RewardFunction, Sample, Setting, Values, any_ground_truth, one_if,
};

/// Bytes a compiled pattern may take; a counted repetition of counted repetitions is refused instead of
/// built.
const MAX_COMPILED_BYTES: usize = 4 << 20;

/// 1 when the **last** match of the pattern captured a ground truth, both trimmed; else 0. Compared is its
/// group `answer`, else its first group, else the whole match.
///
/// The `regex` crate's dialect: time is linear in the text for every pattern, and look-around and
/// back-references do not exist. `^` and `$` are the ends of the text unless the pattern says `(?m)`.
#[derive(Clone, Debug)]
pub struct Pattern {
    regex: Regex,
    group_idx: usize,
}

impl Pattern {
    /// Compiles the pattern.
    ///
    /// # Errors
    /// [`RewardError::Pattern`].
    pub fn new(pattern: &str) -> Result<Self, RewardError> {
        let regex = compile(pattern)?;
        let named = regex.capture_names().position(|name| name == Some("answer"));
        let group_idx = named.unwrap_or(usize::from(regex.captures_len() > 1));
        Ok(Self { regex, group_idx })
    }

    fn captured<'a>(&self, completion: &'a str) -> Option<&'a str> {
        let last = self.regex.captures_iter(completion).last()?;
        last.get(self.group_idx).map(|text| text.as_str().trim())
    }
}

pub(super) fn compile(pattern: &str) -> Result<Regex, RewardError> {
    let built = RegexBuilder::new(pattern).size_limit(MAX_COMPILED_BYTES).build();
    built.map_err(|source| RewardError::Pattern { pattern: pattern.to_owned(), source: Box::new(source) })
}

/// `pattern` of manifests.
pub(super) const PATTERN: Setting = Setting {
    name: "pattern",
    doc: "A regular expression, for `Regex` and `Format`.",
    values: Values::Text { max_length: 4096 },
};

impl DeclaredReward for Pattern {
    const NAME: &'static str = "Regex";
    const DOC: &'static str = "1 when what `pattern` captures last (its group `answer`, else its first group, else the \
         match) equals the ground truth.";
    const SETTINGS: &'static [&'static Setting] = &[&PATTERN];

    fn build(given: &Given<'_>) -> Result<Arc<dyn RewardFunction>, RewardError> {
        Ok(Arc::new(Self::new(given.settings.text(&PATTERN)?)?))
    }
}

impl RewardFunction for Pattern {
    fn score(&self, sample: &Sample<'_>) -> Result<f64, RewardError> {
        let captured = self.captured(sample.completion);
        any_ground_truth(sample.ground_truth, |truth| captured == Some(truth.trim())).map(one_if)
    }

    fn range(&self) -> (f64, f64) {
        (0.0, 1.0)
    }

    fn answer<'a>(&self, completion: &'a str) -> Option<Cow<'a, str>> {
        self.captured(completion).map(Into::into)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::sample;
    use super::*;

    #[test]
    fn the_last_match_is_compared() {
        let pattern = Pattern::new("<answer>(?<answer>[^<]*)</answer>").unwrap();
        let text = "<answer>1</answer><answer> 2 </answer>";
        let score = |truth| pattern.score(&sample(text, &json!(truth))).unwrap();
        assert_eq!((score("2"), score("1")), (1.0, 0.0));
        assert_eq!(pattern.score(&sample("2", &json!("2"))).unwrap(), 0.0);
    }

    #[test]
    fn the_answer_is_a_named_group_else_the_first_else_the_match() {
        for pattern in ["(x)(?<answer>[0-9])", "x([0-9])(y?)", "[0-9]"] {
            let score =
                |truth| Pattern::new(pattern).unwrap().score(&sample("x1y x2y", &json!(truth))).unwrap();
            assert_eq!((score("2"), score("1")), (1.0, 0.0), "{pattern}");
        }
    }

    #[test]
    fn patterns_that_cannot_be_bounded_are_refused() {
        for pattern in ["(", r"(a)\1", "(?=a)", "((a{1000}){1000}){1000}"] {
            assert!(matches!(Pattern::new(pattern), Err(RewardError::Pattern { .. })), "{pattern}");
        }
    }

    #[test]
    fn the_classic_exponential_pattern_is_answered_at_once() {
        let pattern = Pattern::new("^(a+)+$").unwrap();
        let text = format!("{}b", "a".repeat(100_000));
        assert_eq!(pattern.score(&sample(&text, &json!("a"))).unwrap(), 0.0);
    }
}
