//! Normalisation of LaTeX answers, after which equal answers are equal text.
//!
//! The order of the rules matters and is that of the benchmark. Where its program would fail (a `\frac`
//! without arguments, two units), the pair is compared without normalisation.
//!
//! Most rules apply to few answers, so each is tried only if a byte that it needs occurs at all, and text is
//! copied only when it changes.

use std::borrow::Cow;

/// Whether two answers are equal after normalisation, or literally if one of them cannot be normalised.
pub fn are_equivalent(left: &str, right: &str) -> bool {
    if left == right {
        return true;
    }
    match (normalised(left), normalised(right)) {
        (Some(left), Some(right)) => left == right,
        _ => false,
    }
}

/// Returns the normal form of an answer, or the answer itself if it has none: equivalent answers are equal
/// text.
pub fn canonical(answer: &str) -> Cow<'_, str> {
    normalised(answer).unwrap_or(Cow::Borrowed(answer))
}

/// Replacements `(byte that must occur, old text, new text)`, each applied to the whole text, in order. The
/// bytes of the text are collected once, before all replacements, since no replacement adds a byte that a
/// later rule needs.
const REPLACEMENTS: [(u8, &str, &str); 10] = [
    (b'\n', "\n", ""),
    (b'!', "\\!", ""),
    (b'\\', "\\\\", "\\"),
    (b't', "tfrac", "frac"),
    (b'd', "dfrac", "frac"),
    (b'l', "\\left", ""),
    (b'g', "\\right", ""),
    (b'^', "^{\\circ}", ""),
    (b'^', "^\\circ", ""),
    (b'$', "\\$", ""),
];
/// Replacements like [`REPLACEMENTS`] that are applied after units are removed.
const LATE_REPLACEMENTS: [(u8, &str, &str); 3] =
    [(b'%', "\\%", ""), (b'.', " .", " 0."), (b'.', "{.", "{0.")];

/// The set of bytes that occur in a text.
#[derive(Clone, Copy)]
struct Bytes([u64; 4]);

impl Bytes {
    fn of(text: &str) -> Self {
        let mut bits = [0; 4];
        text.bytes().for_each(|byte| bits[usize::from(byte >> 6)] |= 1 << (byte & 63));
        Self(bits)
    }

    fn has(self, byte: u8) -> bool {
        self.0[usize::from(byte >> 6)] & (1 << (byte & 63)) != 0
    }
}

fn normalised(answer: &str) -> Option<Cow<'_, str>> {
    let bytes = Bytes::of(answer);
    let mut text = Cow::Borrowed(answer);
    replace_all(&mut text, &REPLACEMENTS, bytes);
    if bytes.has(b'x') {
        text = mapped(text, without_unit)?;
    }
    replace_all(&mut text, &LATE_REPLACEMENTS, bytes);
    if text.starts_with('.') {
        text.to_mut().insert(0, '0');
    }
    if bytes.has(b'=') {
        text = mapped(text, without_variable)?;
    }
    if bytes.has(b'q') && text.contains("\\sqrt") {
        text = with_braced_roots(&text)?.into();
    }
    if bytes.has(b' ') {
        text.to_mut().retain(|character| character != ' ');
    }
    if bytes.has(b'f') && has_bare_fraction(&text) {
        text = with_braced_fractions(&text)?.into();
    }
    if text == "0.5" {
        text = "\\frac{1}{2}".into();
    }
    if bytes.has(b'/') {
        text = slash_as_fraction(&text).map_or(text, Cow::Owned);
    }
    Some(text)
}

fn replace_all(text: &mut Cow<'_, str>, rules: &[(u8, &str, &str)], bytes: Bytes) {
    for (byte, written, read) in rules {
        if bytes.has(*byte) && occurs(written, text) {
            *text = text.replace(written, read).into();
        }
    }
}

/// Whether `written` occurs in `text`. Answers are short, so a search for its first byte is quickest.
fn occurs(written: &str, text: &str) -> bool {
    let (written, text) = (written.as_bytes(), text.as_bytes());
    let starts_at = |idx: usize| text[idx] == written[0] && text[idx..].starts_with(written);
    (0..text.len()).any(starts_at)
}

/// Applies `part` to a text, without a copy if the text is borrowed.
fn mapped(text: Cow<'_, str>, part: fn(&str) -> Option<&str>) -> Option<Cow<'_, str>> {
    match text {
        Cow::Borrowed(text) => part(text).map(Cow::Borrowed),
        Cow::Owned(text) => part(&text).map(|part| Cow::Owned(part.to_owned())),
    }
}

/// Whether a fraction's numerator has no braces, or is missing.
fn has_bare_fraction(text: &str) -> bool {
    let is_bare = |window: &[u8]| window.starts_with(b"\\frac") && window[5] != b'{';
    text.ends_with("\\frac") || text.as_bytes().windows(6).any(is_bare)
}

/// Removes the text after `\text{ `, which the benchmark uses before units only.
fn without_unit(text: &str) -> Option<&str> {
    let mut parts = text.split("\\text{ ");
    let number = parts.next()?;
    (parts.count() <= 1).then_some(number)
}

/// Removes a left-hand side of at most two characters: `k = 3` becomes `3`.
fn without_variable(text: &str) -> Option<&str> {
    Some(match text.split_once('=') {
        Some((variable, value)) if variable.chars().count() <= 2 && !value.contains('=') => value,
        _ => text,
    })
}

/// Adds braces to roots: `\sqrt3` becomes `\sqrt{3}`.
fn with_braced_roots(text: &str) -> Option<String> {
    let mut parts = text.split("\\sqrt");
    let mut out = parts.next()?.to_owned();
    for part in parts {
        let (radicand, rest) = split_first(part)?;
        out += "\\sqrt";
        out += &braced(radicand);
        out += rest;
    }
    Some(out)
}

/// Adds braces to fractions: `\frac12` and `\frac1{2}` become `\frac{1}{2}`.
fn with_braced_fractions(text: &str) -> Option<String> {
    let mut parts = text.split("\\frac");
    let mut out = parts.next()?.to_owned();
    for part in parts {
        let (numerator, rest) = split_first(part)?;
        out += "\\frac";
        if numerator == '{' {
            out += part;
            continue;
        }
        let Some((denominator, rest)) = split_first(rest) else { return Some(text.to_owned()) };
        out += &braced(numerator);
        out += &braced(denominator);
        out += rest;
    }
    Some(out)
}

/// Puts an argument of one character into braces; an opening brace is kept, since its argument follows.
fn braced(argument: char) -> String {
    if argument == '{' { "{".to_owned() } else { format!("{{{argument}}}") }
}

fn split_first(text: &str) -> Option<(char, &str)> {
    let mut characters = text.chars();
    Some((characters.next()?, characters.as_str()))
}

/// Converts `3/4` of two plainly written integers to a fraction.
fn slash_as_fraction(text: &str) -> Option<String> {
    let (numerator, denominator) = text.split_once('/')?;
    let both = is_plain_integer(numerator) && is_plain_integer(denominator);
    both.then(|| format!("\\frac{{{numerator}}}{{{denominator}}}"))
}

/// Whether a text is an integer as a program prints it: no plus sign, no leading zeros, no `-0`.
fn is_plain_integer(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    plain && (text == "0" || !digits.starts_with('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const EQUIVALENT: &[(&str, &str)] = &[
        ("1", "1"),
        (" 1 ", "1"),
        ("1 + 2", "1+2"),
        ("\\frac{1}{2}", "\\frac12"),
        ("\\frac{1}{2}", "\\frac1{2}"),
        ("\\dfrac{1}{2}", "\\frac{1}{2}"),
        ("\\tfrac{1}{2}", "\\frac{1}{2}"),
        ("\\frac{1}{2}", "1/2"),
        ("\\frac{-3}{4}", "-3/4"),
        ("0.5", "\\frac{1}{2}"),
        (".5", "0.5"),
        (".5", "1/2"),
        ("0.5", "1/2"),
        ("x=5", "5"),
        ("x = 5", "5"),
        ("k=\\frac13", "\\frac{1}{3}"),
        ("\\sqrt3", "\\sqrt{3}"),
        ("2\\sqrt 3", "2\\sqrt{ }3"),
        ("\\frac{\\sqrt3}{2}", "\\frac{\\sqrt{3}}{2}"),
        ("\\sqrt2+\\sqrt3", "\\sqrt{2}+\\sqrt{3}"),
        ("50\\%", "50"),
        ("\\$12.50", "12.50"),
        ("5 ", "5"),
        ("90^\\circ", "90"),
        ("90^{\\circ}", "90"),
        ("5\\text{ cm}", "5"),
        ("10\\text{ square inches}", "10"),
        ("\\left(1,2\\right)", "(1,2)"),
        ("\\left[0, 1\\right)", "[0,1)"),
        ("(1, 2)", "(1,2)"),
        ("1\\!000", "1000"),
        ("10,\\!000", "10,000"),
        ("3\n4", "34"),
        ("\\\\frac{1}{2}", "\\frac{1}{2}"),
        ("( .5, .25)", "(0.5,0.25)"),
        ("\\frac{.5}{2}", "\\frac{0.5}{2}"),
        ("\\frac ab", "\\frac{a}{b}"),
        ("x^2 + 1", "x^2+1"),
        ("\\frac12x", "\\frac{1}{2}x"),
        ("\\frac1{72}", "\\frac{1}{72}"),
        ("-\\frac12", "-\\frac{1}{2}"),
        ("\\text{even}", "\\text{even}"),
        ("\\frac", "\\frac"),
        ("\\sqrt", "\\sqrt"),
        ("", ""),
    ];

    const DIFFERENT: &[(&str, &str)] = &[
        ("1", "2"),
        ("1", ""),
        ("2/4", "1/2"),
        ("0.50", "\\frac{1}{2}"),
        ("0.25", "\\frac{1}{4}"),
        ("1,000", "1000"),
        ("(1,2)", "(2,1)"),
        ("abc=5", "5"),
        ("x=y=5", "5"),
        ("+1/2", "\\frac{1}{2}"),
        ("01/2", "\\frac{1}{2}"),
        ("-0/2", "\\frac{-0}{2}"),
        ("1/2/3", "\\frac{1}{2}/3"),
        ("\\sqrt{3}", "\\sqrt{5}"),
        ("x+1", "1+x"),
        ("\\frac", "\\frac "),
        ("5\\text{cm}", "5"),
        ("1\\text{ a}2\\text{ b}", "1"),
        ("\\text{Even}", "\\text{even}"),
        ("2.0", "2"),
        ("$5$", "5"),
    ];

    #[test]
    fn the_golden_pairs_keep_their_verdict_in_both_directions() {
        for (pairs, expected) in [(EQUIVALENT, true), (DIFFERENT, false)] {
            for (left, right) in pairs {
                assert_eq!(are_equivalent(left, right), expected, "{left:?} and {right:?}");
                assert_eq!(are_equivalent(right, left), expected, "{right:?} and {left:?}");
            }
        }
    }

    #[test]
    fn odd_text_never_panics() {
        for text in ["\\frac1", "\\frac{", "\\sqrt", "=", "/", "\\fracé", "\\text{ ", "\\\\\\\\", "{.", "é=1"]
        {
            assert!(are_equivalent(text, text), "{text}");
        }
    }
}
