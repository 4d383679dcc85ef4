//! Ground truths in the forms of data sets: a bare answer, or a full solution that ends with it.

use super::boxed::last_answer;

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
