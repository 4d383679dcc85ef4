//! Minerva's normal form of a final answer, rule by rule and in the order of verl's `normalize_final_answer`.

const SUBSTITUTIONS: [(&str, &str); 10] = [
    ("an ", ""),
    ("a ", ""),
    (".$", "$"),
    ("\\$", ""),
    ("\\ ", ""),
    (" ", ""),
    ("mbox", "text"),
    (",\\text{and}", ","),
    ("\\text{and}", ","),
    ("\\text{m}", "\\text{}"),
];

/// Units and words that are removed wherever they occur, also inside of words.
const REMOVED: [&str; 40] = [
    "square",
    "ways",
    "integers",
    "dollars",
    "mph",
    "inches",
    "hours",
    "km",
    "units",
    "\\ldots",
    "sue",
    "points",
    "feet",
    "minutes",
    "digits",
    "cents",
    "degrees",
    "cm",
    "gm",
    "pounds",
    "meters",
    "meals",
    "edges",
    "students",
    "childrentickets",
    "multiples",
    "\\text{s}",
    "\\text{.}",
    "\\text{\ns}",
    "\\text{}^2",
    "\\text{}^3",
    "\\text{\n}",
    "\\text{}",
    "\\mathrm{th}",
    "^\\circ",
    "^{\\circ}",
    "\\;",
    ",\\!",
    "{,}",
    "\"",
];
const REMOVED_LAST: &str = "\\dots";

/// Returns the normal form of an answer; equal answers have equal text.
pub(super) fn normalised(answer: &str) -> String {
    let mut text = answer.rsplit('=').next().unwrap_or(answer).to_owned();
    for (written, read) in SUBSTITUTIONS {
        text = text.replace(written, read);
    }
    for removed in REMOVED {
        text = text.replace(removed, "");
    }
    text = text.replace(REMOVED_LAST, "");
    text = first_formula(&text);
    for command in ["\\text{", "\\textbf{", "\\overline{"] {
        text = unwrapped(&text, command);
    }
    text = unboxed(&text);
    text = braced_arguments(&text, "frac", 2);
    text = braced_arguments(&text, "sqrt", 1);
    text = text.replace('$', "");
    let digits = text.replace(',', "");
    if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        text = digits;
    }
    text.trim().to_owned()
}

/// Reduces each line that has a formula `$..$` to the first one.
fn first_formula(text: &str) -> String {
    let of_line = |line: &str| {
        let mut parts = line.splitn(3, '$');
        match (parts.next(), parts.next(), parts.next()) {
            (Some(_), Some(formula), Some(_)) => format!("${formula}$"),
            _ => line.to_owned(),
        }
    };
    text.split('\n').map(of_line).collect::<Vec<_>>().join("\n")
}

/// Replaces `command` (which ends with `{`) and the next `}` by what is between them.
fn unwrapped(text: &str, command: &str) -> String {
    let mut parts = text.split(command);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once('}') {
            Some((inside, rest)) if !inside.contains('\n') => out.extend([inside, rest]),
            _ => out.extend([command, part]),
        }
    }
    out
}

/// Removes the first `\boxed{` and the last `}`.
fn unboxed(text: &str) -> String {
    let parts = text.split_once("\\boxed{").and_then(|(before, rest)| Some((before, rest.rsplit_once('}')?)));
    parts.map_or_else(|| text.to_owned(), |(before, (inside, after))| [before, inside, after].concat())
}

/// Puts the next `num` characters after `command` into braces, unless the first of them is an opening brace.
fn braced_arguments(text: &str, command: &str, num: usize) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once(command) {
        out.extend([before, command]);
        let arguments: Vec<char> = after.chars().take(num).collect();
        rest = after;
        if arguments.len() == num && arguments[0] != '{' {
            arguments.iter().for_each(|argument| out.extend(['{', *argument, '}']));
            rest = &after[arguments.iter().map(|argument| argument.len_utf8()).sum()..];
        }
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of verl's `normalize_final_answer`.
    #[test]
    fn answers_have_the_normal_form_of_the_reference() {
        let cases = [
            ("34", "34"),
            ("x = 1,234", "1234"),
            ("$\\frac12$.", "\\frac{1}{2}"),
            ("\\frac{1}{2}", "\\frac{1}{2}"),
            ("\\sqrt2", "\\sqrt{2}"),
            ("the $5$ and $6$", "5"),
            ("10\\text{ cm}", "10"),
            ("10 dollars", "10"),
            ("\\text{even}", "even"),
            ("\\boxed{7}", "7"),
            ("90^\\circ", "90"),
            ("a set", "set"),
            ("1{,}000", "1000"),
            ("\\textbf{B}", "B"),
            ("", ""),
        ];
        for (answer, normal) in cases {
            assert_eq!(normalised(answer), normal, "{answer}");
        }
    }
}
