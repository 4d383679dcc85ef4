//! Ground truths in the forms of data sets: a bare answer, or a full solution that ends with it.

use serde_json::Number;

use super::RewardError;
use super::boxed::last_answer;

/// Largest magnitude up to which every integer is a float, 2^53.
const MAX_EXACT_INTEGER: f64 = 9_007_199_254_740_992.0;

/// Returns the texts of a numeric ground truth: its own, and without decimals if it is a whole number.
///
/// # Errors
/// [`RewardError::GroundTruth`] for a whole number beyond 2^53 that was read as a float.
pub(super) fn texts_of_number(number: &Number) -> Result<Vec<String>, RewardError> {
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
    let marked = truth.rsplit_once("####").map_or(truth, |(_, answer)| answer);
    without_delimiters(last_answer(marked).unwrap_or(marked))
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

#[cfg(test)]
mod tests {
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
}
