//! Classes of characters as Python's string methods define them.

use std::sync::LazyLock;

use regex::Regex;

/// Characters that are digits to `str.isdigit` but no decimals, as closed ranges.
const DIGITS: [(u32, u32); 20] = [
    (0xb2, 0xb3),
    (0xb9, 0xb9),
    (0x1369, 0x1371),
    (0x19da, 0x19da),
    (0x2070, 0x2070),
    (0x2074, 0x2079),
    (0x2080, 0x2089),
    (0x2460, 0x2468),
    (0x2474, 0x247c),
    (0x2488, 0x2490),
    (0x24ea, 0x24ea),
    (0x24f5, 0x24fd),
    (0x24ff, 0x24ff),
    (0x2776, 0x277e),
    (0x2780, 0x2788),
    (0x278a, 0x2792),
    (0x10a40, 0x10a43),
    (0x10e60, 0x10e68),
    (0x11052, 0x1105a),
    (0x1f100, 0x1f10a),
];

/// Ideographs with a numeric value.
const NUMERALS: &str = "㐅㒃㠪㭍一七万三九二五世亿什仨伍佰億兆兩八六十千卄卅卌叁参參叄四壱壹幺廿廾弌弍弎弐拾捌柒漆玖百肆萬貮貳贰阡陆陌陸零";

#[expect(clippy::unwrap_used, reason = "constant patterns that every test compiles")]
mod classes {
    use super::{LazyLock, Regex};

    pub(super) static HIDDEN: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^[\p{C}\p{Z}]$").unwrap());
    pub(super) static LETTER: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^\p{L}$").unwrap());
    pub(super) static DECIMAL: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^\p{Nd}$").unwrap());
    pub(super) static NUMBER: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^\p{N}$").unwrap());
    pub(super) static TITLE: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^\p{Lt}$").unwrap());
}

fn is(class: &Regex, character: char) -> bool {
    class.is_match(character.encode_utf8(&mut [0; 4]))
}

/// Whether a character is white space to `str.isspace`, `str.strip` and the `\s` of regular expressions.
pub(crate) fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&character)
}

/// Whether a character ends a line for `str.splitlines`.
pub(crate) fn is_line_end(character: char) -> bool {
    matches!(
        character,
        '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
    )
}

/// Whether a character is printable to `str.isprintable`; `repr` escapes all other characters.
pub(crate) fn is_printable(character: char) -> bool {
    match character {
        ' '..='~' => true,
        character if character.is_ascii() => false,
        _ => !is(&classes::HIDDEN, character),
    }
}

/// Whether a character is a letter to `str.isalpha`.
pub(crate) fn is_letter(character: char) -> bool {
    character.is_ascii_alphabetic() || (!character.is_ascii() && is(&classes::LETTER, character))
}

/// Whether a character is a decimal digit to `str.isdecimal`.
pub(crate) fn is_decimal(character: char) -> bool {
    character.is_ascii_digit() || (!character.is_ascii() && is(&classes::DECIMAL, character))
}

/// Returns the text with the decimals of all scripts in ASCII, as `int` and `float` read them.
pub(crate) fn ascii_digits(text: &str) -> String {
    let ascii = |character: char| {
        if character.is_ascii() || !is_decimal(character) {
            return character;
        }
        char::from_digit(decimal_value(character), 10).unwrap_or(character)
    };
    text.chars().map(ascii).collect()
}

/// Value of a decimal. Unicode has them in runs from 0 to 9, which may follow each other.
fn decimal_value(decimal: char) -> u32 {
    let before = (0..u32::from(decimal)).rev().map_while(char::from_u32).take_while(|one| is_decimal(*one));
    before.fold(0, |value, _| (value + 1) % 10)
}

/// Whether a character is a digit to `str.isdigit`.
pub(crate) fn is_digit(character: char) -> bool {
    let code = u32::from(character);
    is_decimal(character) || DIGITS.iter().any(|(first, last)| (*first..=*last).contains(&code))
}

/// Whether a character is numeric to `str.isnumeric`.
pub(crate) fn is_numeric(character: char) -> bool {
    is_decimal(character)
        || (!character.is_ascii() && (is(&classes::NUMBER, character) || NUMERALS.contains(character)))
}

/// Whether a character is a letter or a number to `str.isalnum`.
pub(crate) fn is_letter_or_number(character: char) -> bool {
    is_letter(character) || is_numeric(character)
}

/// Whether a character is in title case, such as `ǅ`.
pub(crate) fn is_title(character: char) -> bool {
    !character.is_ascii() && is(&classes::TITLE, character)
}

/// Whether a character has a case.
pub(crate) fn is_cased(character: char) -> bool {
    character.is_lowercase() || character.is_uppercase() || is_title(character)
}

/// Converts a text as `str.title`: the first letter of each run of cased letters becomes upper case, the rest
/// lower case.
pub(crate) fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut inside = false;
    for character in text.chars() {
        if inside {
            out.extend(character.to_lowercase());
        } else {
            push_title(&mut out, character);
        }
        inside = is_cased(character);
    }
    out
}

/// Converts a text as `str.capitalize`: its first character becomes title case, the rest lower case.
pub(crate) fn capitalize(text: &str) -> String {
    let mut characters = text.chars();
    let mut out = String::with_capacity(text.len());
    if let Some(first) = characters.next() {
        push_title(&mut out, first);
    }
    out.push_str(&characters.as_str().to_lowercase());
    out
}

/// Appends a character in title case: `ß` becomes `Ss`, a character in title case stays.
fn push_title(out: &mut String, character: char) {
    // Digraphs have a title case of their own, and Georgian letters are their own title case.
    match character {
        'Ǆ' | 'ǆ' => return out.push('ǅ'),
        'Ǉ' | 'ǉ' => return out.push('ǈ'),
        'Ǌ' | 'ǌ' => return out.push('ǋ'),
        'Ǳ' | 'ǳ' => return out.push('ǲ'),
        '\u{10d0}'..='\u{10ff}' => return out.push(character),
        title if is_title(title) => return out.push(title),
        _ => {}
    }
    let mut upper = character.to_uppercase();
    out.extend(upper.next());
    for more in upper {
        out.extend(more.to_lowercase());
    }
}
