//! GSM8K's final answer after `####`, as extracted by verl's `utils/reward_score/gsm8k.py`.

use std::borrow::Cow;
use std::sync::Arc;

use super::truth::{any_stated_truth, stated_answer};
use crate::reward::{DeclaredReward, Given, RewardError, RewardFunction, Sample, one_if};

/// Number of characters searched at the end of a completion: the answer is there, and long completions stay
/// cheap.
const SEARCHED_CHARACTERS: usize = 300;

/// 1 when the extracted answer equals the ground truth as text, else 0.
///
/// The answer is the last match in the last 300 characters. The ground truth is a number, or a full solution
/// that states it ([`stated_answer`]), as in the column `answer` of `openai/gsm8k`. Commas and dollar signs
/// are removed on both sides, so `1,000` equals `1000`; `42.0` and `42` differ.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gsm8k {
    /// Whether to take the last number anywhere instead of the last `#### number`; a full stop after it is
    /// removed, too.
    pub flexible: bool,
}

/// Declaration of the strict [`Gsm8k`].
pub struct Strict;

/// Declaration of the flexible [`Gsm8k`].
pub struct Flexible;

impl DeclaredReward for Strict {
    const NAME: &'static str = "Gsm8k";
    const DOC: &'static str =
        "1 when the number after the last `####` equals the ground truth (GSM8K, verl's strict form).";

    fn build(_: &Given<'_>) -> Result<Arc<dyn RewardFunction>, RewardError> {
        Ok(Arc::new(Gsm8k { flexible: false }))
    }
}

impl DeclaredReward for Flexible {
    const NAME: &'static str = "Gsm8kFlexible";
    const DOC: &'static str =
        "1 when the last number anywhere equals the ground truth (GSM8K, verl's flexible form).";

    fn build(_: &Given<'_>) -> Result<Arc<dyn RewardFunction>, RewardError> {
        Ok(Arc::new(Gsm8k { flexible: true }))
    }
}

impl RewardFunction for Gsm8k {
    fn score(&self, sample: &Sample<'_>) -> Result<f64, RewardError> {
        let answer = self.answer(sample.completion);
        let equals = |truth: &str| {
            answer.as_ref().is_some_and(|answer| *answer == without_marks(stated_answer(truth)))
        };
        any_stated_truth(sample.ground_truth, equals).map(one_if)
    }

    fn range(&self) -> (f64, f64) {
        (0.0, 1.0)
    }

    fn answer<'a>(&self, completion: &'a str) -> Option<Cow<'a, str>> {
        let end = last_characters(completion, SEARCHED_CHARACTERS);
        if self.flexible { last_number(end) } else { last_marked_number(end) }
    }
}

/// Returns the last match of `#### (-?[0-9.,]+)`, searched from the end.
fn last_marked_number(text: &str) -> Option<Cow<'_, str>> {
    let mut before = text;
    while let Some(mark_end) = before.rfind('#').map(|idx| idx + 1) {
        before = &before[..mark_end];
        let number = text[mark_end..].strip_prefix(' ').and_then(leading_number);
        if let (Some(number), true) = (number, before.ends_with("####")) {
            return Some(without_marks(number));
        }
        before = &before[..mark_end - 1];
    }
    None
}

/// Returns the longest `-?[0-9.,]+` at the beginning.
fn leading_number(text: &str) -> Option<&str> {
    let unsigned = text.strip_prefix('-').unwrap_or(text);
    let num_bytes = unsigned.bytes().take_while(|byte| is_number_byte(*byte)).count();
    (num_bytes > 0).then(|| &text[..text.len() - unsigned.len() + num_bytes])
}

/// Returns the last run of digits, with commas and full stops inside and a minus sign before it.
fn last_number(text: &str) -> Option<Cow<'_, str>> {
    let end = text.rfind(|character: char| character.is_ascii_digit())? + 1;
    let num_bytes = text[..end].bytes().rev().take_while(|byte| is_number_byte(*byte)).count();
    let start = end - num_bytes;
    let start = if text[..start].ends_with('-') { start - 1 } else { start };
    Some(without_marks(&text[start..end]))
}

fn is_number_byte(byte: u8) -> bool {
    byte.is_ascii_digit() || byte == b'.' || byte == b','
}

fn without_marks(number: &str) -> Cow<'_, str> {
    if number.contains([',', '$']) { number.replace([',', '$'], "").into() } else { number.into() }
}

pub(super) fn last_characters(text: &str, num_characters: usize) -> &str {
    let start = text.len().saturating_sub(num_characters);
    if text.as_bytes()[start..].is_ascii() {
        return &text[start..];
    }
    let start = text.char_indices().rev().take(num_characters).last();
    start.map_or("", |(idx, _)| &text[idx..])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::reward::sample;

    fn strict(completion: &str, truth: &str) -> f64 {
        Gsm8k::default().score(&sample(completion, &json!(truth))).unwrap()
    }

    fn flexible(completion: &str, truth: &str) -> f64 {
        Gsm8k { flexible: true }.score(&sample(completion, &json!(truth))).unwrap()
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
    fn marks_that_touch_other_marks_count_as_a_regular_expression_would_count_them() {
        assert_eq!(strict("##### 5", "5"), 1.0);
        assert_eq!(strict("#### 5 #### x", "5"), 1.0);
        assert_eq!(strict("#### 5 ### 6", "5"), 1.0);
        assert_eq!(strict("#### 5é", "5"), 1.0);
        assert_eq!(strict("#### -", "-"), 0.0);
        assert_eq!(strict("#### .", "."), 1.0);
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
    fn the_answers_of_the_data_set_are_ground_truths() {
        let rationale = "Natalia sold 48/2 = <<48/2=24>>24 clips in May.\nThat is <<48+24=72>>72 altogether.";
        let truth = format!("{rationale}\n#### 72");
        assert_eq!((strict("So 72.\n#### 72", &truth), flexible("It is 72.", &truth)), (1.0, 1.0));
        assert_eq!((strict("#### 24", &truth), flexible("It is 24.", &truth)), (0.0, 0.0));
        assert_eq!(strict("#### 1200", &format!("{rationale}\n#### 1,200")), 1.0);
        assert_eq!((strict("#### 5", "\\boxed{5}"), strict("#### 5", "$5$")), (1.0, 1.0));
    }

    #[test]
    fn a_numeric_ground_truth_counts_as_its_text() {
        for truth in [json!(18), json!(18.0), json!("[\"18\"]")] {
            assert_eq!(Gsm8k::default().score(&sample("#### 18", &truth)).unwrap(), 1.0, "{truth}");
        }
    }
}
