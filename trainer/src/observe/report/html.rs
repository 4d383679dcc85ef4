//! Formatting of text and numbers for HTML.

/// Escapes text for element content and for attribute values in double quotes.
///
/// Completions are untrusted: besides the five characters with a meaning in HTML, control characters and
/// characters that change the writing direction are replaced by U+FFFD.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\n' | '\t' => escaped.push(character),
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => escaped.push('\u{fffd}'),
            _ if character.is_control() => escaped.push('\u{fffd}'),
            _ => escaped.push(character),
        }
    }
    escaped
}

/// Formats a number with about three significant digits, short enough for an axis: `0.412`, `18.4k`,
/// `3.2e-6`.
pub(super) fn number(value: f64) -> String {
    let magnitude = value.abs();
    let text = match magnitude {
        0.0 => return "0".into(),
        _ if magnitude < 1e-3 => {
            let text = format!("{value:.1e}");
            return text.replace(".0e", "e");
        }
        _ if magnitude >= 1e9 => return format!("{}G", trimmed(format!("{:.2}", value / 1e9))),
        _ if magnitude >= 1e6 => return format!("{}M", trimmed(format!("{:.2}", value / 1e6))),
        _ if magnitude >= 1e4 => return format!("{}k", trimmed(format!("{:.1}", value / 1e3))),
        _ if magnitude >= 100.0 => format!("{value:.0}"),
        _ if magnitude >= 10.0 => format!("{value:.1}"),
        _ if magnitude >= 0.1 => format!("{value:.3}"),
        _ => format!("{value:.4}"),
    };
    trimmed(text)
}

/// Removes trailing zeros after a decimal point, and the point if nothing follows it.
fn trimmed(text: String) -> String {
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// Formats a duration: `45 s`, `3 min 5 s`, `2 h 7 min`.
pub(super) fn duration(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match (whole / 3600, whole / 60 % 60, whole % 60) {
        (0, 0, _) if seconds < 10.0 => format!("{seconds:.1} s"),
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, 0) => format!("{minutes} min"),
        (0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (hours, minutes, _) => format!("{hours} h {minutes} min"),
    }
}

/// Shortens a text to at most `max` characters and states how many more there were.
pub(super) fn shortened(text: &str, max: usize) -> String {
    match text.char_indices().nth(max) {
        Some((end, _)) => format!("{} … ({} more characters)", &text[..end], text[end..].chars().count()),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_a_model_cannot_become_markup_or_turn_the_page_around() {
        let text = "<script>alert('x')</script> \"&\u{202e}\u{0}\u{1b}[31m\nline";
        let expected =
            "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt; &quot;&amp;\u{fffd}\u{fffd}\u{fffd}[31m\nline";
        assert_eq!(escape(text), expected);
    }

    #[test]
    fn numbers_are_short_at_every_size() {
        let cases = [
            (0.0, "0"),
            (0.4125, "0.412"),
            (0.5, "0.5"),
            (-0.0312, "-0.0312"),
            (1e-6, "1e-6"),
            (3.24e-6, "3.2e-6"),
            (12.34, "12.3"),
            (128.0, "128"),
            (18_421.0, "18.4k"),
            (2.5e6, "2.5M"),
            (100.0, "100"),
        ];
        for (value, expected) in cases {
            assert_eq!(number(value), expected);
        }
    }

    #[test]
    fn long_texts_say_how_much_was_cut() {
        assert_eq!(shortened("äöü", 3), "äöü");
        assert_eq!(shortened("äöüß!", 3), "äöü … (2 more characters)");
    }
}
