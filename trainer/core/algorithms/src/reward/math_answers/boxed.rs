//! Search for the last boxed answers.

use std::borrow::Cow;

/// Largest length in bytes of the text between boxes that are listed.
const MAX_SEPARATOR: usize = 70;

/// Returns the content of the last box of `text`: the balanced braces after the last `\boxed` (or, without
/// one, `\fbox`), or the text after the last `\boxed ` up to a dollar sign. `None` without a box or if its
/// braces never close.
pub fn last_answer(text: &str) -> Option<&str> {
    let (mut boxed, mut framed) = (None, None);
    let mut before = text;
    while let Some(start) = memchr::memrchr(b'\\', before.as_bytes()) {
        let command = &text[start + 1..];
        if let Some(after) = command.strip_prefix("boxed") {
            if let Some(unbraced) = after.strip_prefix(' ') {
                return unbraced.split('$').next();
            }
            boxed = boxed.or(Some(after));
        } else if framed.is_none() {
            framed = command.strip_prefix("fbox");
        }
        before = &before[..start];
    }
    boxed.or(framed).and_then(braced)
}

/// Returns the contents of the last box and of the boxes that are listed with it, with commas between them:
/// `1, 2` for `$x=\boxed{1}$ or $x=\boxed{2}$`. `None` if there is no box or if the last one never closes.
///
/// Boxes are listed if nothing but commas, semicolons, `and`, `or` and a left-hand side such as `x_2=` is
/// between them.
pub fn listed_answers(text: &str) -> Option<Cow<'_, str>> {
    let mut answers: Vec<&str> = Vec::new();
    let (mut before, mut next_start) = (text, text.len());
    while let Some(start) = memchr::memrchr(b'\\', before.as_bytes()) {
        before = &text[..start];
        let command = &text[start + 1..];
        let after = command.strip_prefix("boxed").or_else(|| command.strip_prefix("fbox"));
        let Some(after) = after else { continue };
        let inside = after.trim_start();
        let Some(content) = braced(inside) else {
            // `\boxed 5` ends with its formula.
            if answers.is_empty() && after.starts_with(' ') {
                answers.extend(after.split('$').next());
            }
            break;
        };
        let end = text.len() - inside.len() + content.len() + 2;
        if !answers.is_empty() && !text.get(end..next_start).is_some_and(is_separator) {
            break;
        }
        answers.push(content);
        next_start = start;
    }
    answers.reverse();
    match answers.as_slice() {
        [] => None,
        &[only] => Some(Cow::Borrowed(only)),
        several => Some(Cow::Owned(several.join(", "))),
    }
}

/// Whether the text between two boxes lists them.
fn is_separator(between: &str) -> bool {
    if between.len() > MAX_SEPARATOR {
        return false;
    }
    let mut text = between.replace("\\text", "").replace("\\quad", "");
    text.retain(|sign| !sign.is_whitespace() && !matches!(sign, '$' | '{' | '}' | '\\' | '(' | ')'));
    let mut rest = text.as_str();
    while let Some(shorter) = [",", ";", "and", "or"].iter().find_map(|word| rest.strip_prefix(*word)) {
        rest = shorter;
    }
    let Some(name) = rest.strip_suffix('=') else { return rest.is_empty() };
    let index = name.strip_prefix(char::is_alphabetic);
    index.is_some_and(|index| index.chars().all(|sign| sign.is_ascii_digit() || sign == '_'))
}

/// Returns the content of the braces with which `text` begins.
pub(super) fn braced(text: &str) -> Option<&str> {
    let inside = text.strip_prefix('{')?;
    let mut depth = 1usize;
    for (idx, byte) in inside.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => continue,
        }
        if depth == 0 {
            return Some(&inside[..idx]);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn braces_are_balanced_and_the_last_box_wins() {
        let cases = [
            ("\\boxed{7}", Some("7")),
            ("\\boxed{1} then \\boxed{\\frac{a}{b}} done}", Some("\\frac{a}{b}")),
            ("\\boxed{{}}", Some("{}")),
            ("\\boxed{}", Some("")),
            ("\\fbox{9}", Some("9")),
            ("\\fbox{9} \\boxed{8}", Some("8")),
            ("$\\boxed 12$ dollars", Some("12")),
            ("\\boxed{é}", Some("é")),
            ("\\boxed{1", None),
            ("\\boxed", None),
            ("\\boxed7", None),
            ("7", None),
            ("", None),
        ];
        for (text, answer) in cases {
            assert_eq!(last_answer(text), answer, "{text}");
        }
    }

    #[test]
    fn boxes_with_separators_between_them_are_one_answer() {
        let cases = [
            ("$x=\\boxed{1}$ or $x=\\boxed{2}$.", Some("1, 2")),
            ("\\boxed{1}, \\boxed{2}, and \\boxed{3}", Some("1, 2, 3")),
            ("$x_1 = \\boxed{1} \\text{ and } x_2 = \\boxed{2}$", Some("1, 2")),
            ("\\boxed{1} is wrong, \\boxed{2}", Some("2")),
            ("so x=\\boxed{1}, no, x=\\boxed{2}", Some("2")),
            ("\\boxed{\\boxed{1}}", Some("1")),
            ("\\boxed {5}. That is it.", Some("5")),
            ("$\\boxed 12$ dollars", Some(" 12")),
            ("\\fbox{9}", Some("9")),
            ("\\boxed{1} and \\boxed{2", None),
            ("\\boxed7", None),
            ("", None),
        ];
        for (text, answer) in cases {
            assert_eq!(listed_answers(text).as_deref(), answer, "{text}");
        }
        // The time is linear in the number of boxes that never close.
        assert_eq!(listed_answers(&"\\boxed{".repeat(100_000)), None);
        assert_eq!(listed_answers(&"\\boxed{1}".repeat(1000)).unwrap().len(), 2998);
    }
}
