//! Search for the last boxed answer.

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

/// Returns the content of the braces with which `text` begins.
fn braced(text: &str) -> Option<&str> {
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
}
