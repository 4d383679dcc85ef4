//! GSM8K's final answer after `####`, as verl's `utils/reward_score/gsm8k.py` reads it.

use std::sync::LazyLock;

use regex::Regex;

use serde_json::Value;

use super::{RewardError, RewardFunction, Sample, ground_truths, one_if};

/// Only the end of a completion is searched: an answer stands there, and long completions stay cheap.
const SEARCHED_CHARACTERS: usize = 300;

#[expect(clippy::unwrap_used, reason = "a constant pattern that every test of this module compiles")]
static STRICT: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"#### (-?[0-9.,]+)").unwrap());
#[expect(clippy::unwrap_used, reason = "a constant pattern that every test of this module compiles")]
static NUMBER: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"-?[0-9.,]+").unwrap());

/// 1 when the extracted answer equals the ground truth as text, `format_score` when one was found but
/// differs, 0 when none was found.
///
/// The answer is the last match in the last 300 characters. Commas and dollar signs are dropped on both
/// sides, so `1,000` equals `1000`; `42.0` and `42` differ.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gsm8k {
    /// Take the last number anywhere instead of the last `#### number`; a full stop that ends it is dropped
    /// too.
    pub flexible: bool,
    /// Value of an answer that was found but is wrong, in `[0, 1]`.
    pub format_score: f64,
}

impl RewardFunction for Gsm8k {
    fn score(&self, sample: &Sample<'_>) -> Result<f64, RewardError> {
        let truths = ground_truths(sample.ground_truth)?;
        let Some(answer) = self.extract(sample.completion) else { return Ok(0.0) };
        let equal = truths.iter().any(|truth| without_marks(truth.trim()) == answer);
        Ok(one_if(equal).max(self.format_score))
    }

    fn range(&self) -> (f64, f64) {
        (0.0, 1.0)
    }

    fn check_ground_truth(&self, ground_truth: &Value) -> Result<(), RewardError> {
        ground_truths(ground_truth).map(drop)
    }
}

impl Gsm8k {
    fn extract(&self, completion: &str) -> Option<String> {
        let end = last_characters(completion, SEARCHED_CHARACTERS);
        if self.flexible { last_number(end) } else { last_marked_number(end) }
    }
}

fn last_marked_number(text: &str) -> Option<String> {
    let (_, [number]) = STRICT.captures_iter(text).last()?.extract();
    Some(without_marks(number))
}

fn last_number(text: &str) -> Option<String> {
    let numbers = NUMBER.find_iter(text).map(|found| without_marks(found.as_str()));
    numbers
        .map(|number| number.trim_end_matches('.').to_owned())
        .filter(|number| number.contains(|c: char| c.is_ascii_digit()))
        .last()
}

fn without_marks(number: &str) -> String {
    number.replace([',', '$'], "")
}

fn last_characters(text: &str, num_characters: usize) -> &str {
    let start = text.char_indices().rev().take(num_characters).last();
    start.map_or("", |(idx, _)| &text[idx..])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::sample;
    use super::*;

    fn strict(completion: &str, truth: &str) -> f64 {
        Gsm8k::default().score(&sample(completion, &json!(truth))).unwrap()
    }

    fn flexible(completion: &str, truth: &str) -> f64 {
        Gsm8k { flexible: true, format_score: 0.0 }.score(&sample(completion, &json!(truth))).unwrap()
    }

    #[test]
    fn thousands_commas_are_dropped_and_decimals_stay_text() {
        assert_eq!(strict("so it is\n#### 1,000", "1000"), 1.0);
        assert_eq!(strict("#### 1000", "1,000"), 1.0);
        assert_eq!(strict("#### 42.0", "42"), 0.0);
        assert_eq!(strict("#### -7", "-7"), 1.0);
    }

    #[test]
    fn the_last_marked_number_wins() {
        assert_eq!(strict("#### 1\n#### 2", "2"), 1.0);
        assert_eq!(strict("#### 1\n#### 2", "1"), 0.0);
    }

    #[test]
    fn strict_wants_the_mark_one_space_and_a_number() {
        for completion in ["2", "####2", "####  2", "#### two", "#### $2", ""] {
            assert_eq!(strict(completion, "2"), 0.0, "{completion:?}");
        }
    }

    #[test]
    fn a_mark_before_the_last_300_characters_does_not_count() {
        let padded = |n: usize| format!("#### 5{}", "é".repeat(n));
        assert_eq!(strict(&padded(294), "5"), 1.0);
        assert_eq!(strict(&padded(295), "5"), 0.0);
    }

    #[test]
    fn flexible_takes_the_last_number_anywhere() {
        assert_eq!(flexible("first 3, then the answer is 42.", "42"), 1.0);
        assert_eq!(flexible("it costs $1,250 ... maybe", "1250"), 1.0);
        assert_eq!(flexible("no number, only dots ...", "1"), 0.0);
    }

    #[test]
    fn a_wrong_answer_in_the_right_form_earns_the_format_score() {
        let gsm8k = Gsm8k { flexible: false, format_score: 0.1 };
        let score = |text: &str| gsm8k.score(&sample(text, &json!("5"))).unwrap();
        assert_eq!(["#### 5", "#### 6", "6"].map(score), [1.0, 0.1, 0.0]);
    }

    #[test]
    fn a_numeric_ground_truth_counts_as_its_text() {
        assert_eq!(Gsm8k::default().score(&sample("#### 18", &json!(18))).unwrap(), 1.0);
    }
}
