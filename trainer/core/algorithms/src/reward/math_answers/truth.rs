//! Ground truths in the forms of data sets: a bare answer, a full solution that ends with it, or a list of
//! answers.

use serde_json::{Number, Value};

use super::boxed::last_answer;
use crate::reward::RewardError;

/// Largest magnitude up to which every integer is a float, 2^53.
const MAX_EXACT_INTEGER: f64 = 9_007_199_254_740_992.0;

/// Returns the texts of a numeric ground truth: its own, and without decimals if it is a whole number.
///
/// # Errors
/// [`RewardError::GroundTruth`] for a whole number beyond 2^53 that was read as a float.
fn texts_of_number(number: &Number) -> Result<Vec<String>, RewardError> {
    let text = number.to_string();
    let float = number.as_f64().filter(|float| number.is_f64() && float.fract() == 0.0);
    let Some(float) = float else { return Ok(vec![text]) };
    if float.abs() > MAX_EXACT_INTEGER {
        let got = format!("{text}, which may have lost digits (write it as a text)");
        return Err(RewardError::GroundTruth { got });
    }
    Ok(vec![format!("{float:.0}"), text])
}

/// Returns the answer that a ground truth states.
///
/// This is the text after the last `####` (as in `openai/gsm8k`), else the last `\boxed{..}` (the `solution`
/// columns of MATH and NuminaMath), else the whole text. Math delimiters around all of it are removed.
pub fn stated_answer(truth: &str) -> &str {
    let marked = after_mark(truth);
    without_delimiters(last_answer(marked).unwrap_or(marked))
}

/// Returns the text after the last `####`, or all of it.
pub(super) fn after_mark(truth: &str) -> &str {
    truth.rsplit_once("####").map_or(truth, |(_, answer)| answer)
}

/// Removes white space and one pair of math delimiters: `$..$`, `$$..$$`, `\(..\)` or `\[..\]`.
///
/// `$3$ and $4$` is left alone, because its first and last dollar signs belong to different formulas.
pub fn without_delimiters(text: &str) -> &str {
    const DELIMITERS: [(&str, &str, char); 4] =
        [("$$", "$$", '$'), ("$", "$", '$'), ("\\(", "\\)", '\\'), ("\\[", "\\]", '\\')];
    let text = text.trim();
    for (open, close, sign) in DELIMITERS {
        let inside = text.strip_prefix(open).and_then(|rest| rest.strip_suffix(close));
        let is_one_formula = |inside: &&str| sign != '$' || !inside.replace("\\$", "").contains('$');
        if let Some(inside) = inside.filter(is_one_formula) {
            return inside.trim();
        }
    }
    text
}

/// Whether `matches` accepts a ground truth, or any element of a list of them. A number or a boolean has
/// several texts, such as 72 and 72.0.
///
/// # Errors
/// [`RewardError::GroundTruth`] for null, an object, an empty list or a list that contains one of these, and
/// for an integer that was read as a float and may have lost digits.
pub fn any_ground_truth(value: &Value, mut matches: impl FnMut(&str) -> bool) -> Result<bool, RewardError> {
    let values = match value {
        Value::Array(values) if !values.is_empty() => values.as_slice(),
        scalar => std::slice::from_ref(scalar),
    };
    values.iter().try_fold(false, |found, value| match value {
        Value::String(text) => Ok(matches(text) || found),
        Value::Number(number) => {
            Ok(texts_of_number(number)?.iter().fold(found, |found, text| matches(text) || found))
        }
        Value::Bool(true) => {
            Ok(["true", "True"].into_iter().fold(found, |found, text| matches(text) || found))
        }
        Value::Bool(false) => {
            Ok(["false", "False"].into_iter().fold(found, |found, text| matches(text) || found))
        }
        Value::Null | Value::Array(_) | Value::Object(_) => {
            Err(RewardError::GroundTruth { got: value.to_string().chars().take(80).collect() })
        }
    })
}

/// Like [`any_ground_truth`], but a text that is a JSON list of texts (`["72"]`) is read as that list.
///
/// # Errors
/// Those of [`any_ground_truth`].
pub(super) fn any_stated_truth(
    value: &Value,
    mut matches: impl FnMut(&str) -> bool,
) -> Result<bool, RewardError> {
    any_ground_truth(value, |truth| match listed_texts(truth) {
        Some(texts) => texts.iter().any(|text| matches(text)),
        None => matches(truth),
    })
}

fn listed_texts(truth: &str) -> Option<Vec<String>> {
    if truth.trim_start().starts_with("[\"") { serde_json::from_str(truth).ok() } else { None }
}

/// Checks that completions can be compared with this ground truth.
pub(in crate::reward) fn check_comparable(value: &Value) -> Result<(), RewardError> {
    any_ground_truth(value, |_| false).map(drop)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_answer_is_found_in_every_form_that_data_sets_have() {
        let cases = [
            ("72", "72"),
            (" 72\n", "72"),
            ("48/2 = <<48/2=24>>24 clips.\n48+24 = 72\n#### 72", "72"),
            ("#### 1 is wrong\n#### 1,000", "1,000"),
            ("We get $x = \\boxed{\\frac{1}{2}}$.", "\\frac{1}{2}"),
            ("First \\boxed{1}, finally \\boxed{$2$}.", "2"),
            ("$5$", "5"),
            ("$$x+1$$", "x+1"),
            ("\\( 5 \\)", "5"),
            ("\\[5\\]", "5"),
            ("$3$ and $4$", "$3$ and $4$"),
            ("$\\$5$", "\\$5"),
            ("$5", "$5"),
            ("$", "$"),
            ("$$", ""),
            ("", ""),
            ("\\boxed{1", "\\boxed{1"),
        ];
        for (truth, answer) in cases {
            assert_eq!(stated_answer(truth), answer, "{truth:?}");
        }
    }

    #[test]
    fn numbers_and_lists_are_ground_truths() {
        let holds = |value, text: &str| any_ground_truth(&value, |truth| truth == text).unwrap();
        assert!(holds(json!(18), "18") && holds(json!(["a", 2.5]), "2.5") && holds(json!(["a", 2.5]), "a"));
        assert!(!holds(json!("18"), "8"));
        // A column of integers with missing values is one of floats.
        assert!(holds(json!(72.0), "72") && holds(json!(72.0), "72.0") && holds(json!([-3.0]), "-3"));
        assert!(!holds(json!("72.0"), "72") && !holds(json!(2.5), "2"));
        assert!(holds(json!(true), "True") && holds(json!(false), "false") && !holds(json!(true), "False"));
    }

    #[test]
    fn an_integer_that_may_have_lost_digits_is_no_ground_truth() {
        let truth: Value = serde_json::from_str("123456789012345678901234567890").unwrap();
        let error = check_comparable(&truth).unwrap_err();
        assert!(error.to_string().contains("write it as a text"), "{error}");
        assert!(
            check_comparable(&json!(u64::MAX)).is_ok() && check_comparable(&json!(2.0_f64.powi(53))).is_ok()
        );
    }

    #[test]
    fn floats_without_a_fraction_are_integers_as_well() {
        let holds = |value, text: &str| any_ground_truth(&value, |truth| truth == text).unwrap();
        assert!(holds(json!(18.0), "18") && holds(json!(18.0), "18.0") && holds(json!([-3.0]), "-3"));
        assert!(!holds(json!(18.5), "18") && !holds(json!(18), "18.0"));
    }

    #[test]
    fn the_json_text_of_a_list_is_a_list_of_answers() {
        let holds = |value, text: &str| any_stated_truth(&value, |truth| truth == text).unwrap();
        assert!(holds(json!(r#"["\\frac12", "0.5"]"#), "\\frac12") && holds(json!(r#"["7", "8"]"#), "8"));
        for other in ["[1,2]", "[\"", "[\"a\", 2]", "7"] {
            assert!(holds(json!(other), other), "{other}");
        }
    }

    #[test]
    fn a_missing_ground_truth_is_an_error_and_never_a_match() {
        for value in [json!(null), json!({}), json!([]), json!([null]), json!([[1]]), json!(["a", null])] {
            assert!(matches!(check_comparable(&value), Err(RewardError::GroundTruth { .. })), "{value}");
        }
    }
}
