//! Python's formats: what `%` and `str.format` have in common.

mod braces;
mod percent;

pub(crate) use braces::braces;
pub(crate) use percent::percent;

use crate::error::{Error, Result};
use crate::text::check_len;

/// Layout of a value in its field.
#[derive(Clone, Debug, Default)]
struct Spec {
    fill: Option<char>,
    /// `<`, `>`, `^` or `=`.
    align: Option<char>,
    sign: Option<char>,
    alternate: bool,
    width: usize,
    grouping: Option<char>,
    precision: Option<usize>,
    kind: Option<char>,
}

fn digits(characters: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Result<Option<usize>> {
    let mut number = None;
    while let Some(digit) = characters.peek().and_then(|next| next.to_digit(10)) {
        characters.next();
        let value: usize = number.unwrap_or(0usize) * 10 + digit as usize;
        check_len(value)?;
        number = Some(value);
    }
    Ok(number)
}

/// Truncates a float to an integer, as `int(float)` does.
pub(crate) fn truncate(float: f64) -> Result<i128> {
    if !float.is_finite() || float.abs() > 1e38 {
        return Err(Error::render("cannot convert the float to an integer"));
    }
    Ok(float as i128)
}

fn truncated(text: &str, precision: Option<usize>) -> String {
    text.chars().take(precision.unwrap_or(usize::MAX)).collect()
}

/// Pads a text to the width of its field. If fill characters are aligned by `=`, they follow `sign`.
fn padded(text: &str, sign: &str, spec: &Spec) -> Result<String> {
    check_len(spec.width)?;
    let missing = spec.width.saturating_sub(text.chars().count() + sign.chars().count());
    let fill = spec.fill.unwrap_or(' ');
    let pad = |count: usize| std::iter::repeat_n(fill, count).collect::<String>();
    Ok(match spec.align.unwrap_or('<') {
        '>' => format!("{}{sign}{text}", pad(missing)),
        '^' => format!("{}{sign}{text}{}", pad(missing / 2), pad(missing - missing / 2)),
        '=' => format!("{sign}{}{text}", pad(missing)),
        _ => format!("{sign}{text}{}", pad(missing)),
    })
}

fn sign_of(negative: bool, spec: &Spec) -> &'static str {
    match spec.sign {
        _ if negative => "-",
        Some('+') => "+",
        Some(' ') => " ",
        _ => "",
    }
}

/// Inserts a separator between groups of `size` digits, which is three, or four for hexadecimal and the like.
/// Zeros that fill a field are grouped, too; the field also holds `others` characters of the number besides
/// its digits.
fn grouped(digits: &str, others: usize, size: usize, spec: &Spec) -> String {
    let Some(separator) = spec.grouping else { return digits.to_owned() };
    let mut count = digits.len();
    if count > 0 && spec.fill == Some('0') && spec.align == Some('=') {
        let width = spec.width.saturating_sub(others);
        while count + (count - 1) / size < width {
            count += 1;
        }
    }
    let digits = format!("{}{digits}", "0".repeat(count - digits.len()));
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(size) {
            out.push(separator);
        }
        out.push(digit);
    }
    out
}

fn integer(number: i128, min_digits: usize, spec: &Spec) -> Result<String> {
    check_len(min_digits)?;
    let magnitude = number.unsigned_abs();
    let (digits, prefix, group) = match spec.kind {
        Some('x') => (format!("{magnitude:x}"), "0x", 4),
        Some('X') => (format!("{magnitude:X}"), "0X", 4),
        Some('o') => (format!("{magnitude:o}"), "0o", 4),
        Some('b') => (format!("{magnitude:b}"), "0b", 4),
        _ => (magnitude.to_string(), "", 3),
    };
    let digits = format!("{}{digits}", "0".repeat(min_digits.saturating_sub(digits.len())));
    let prefix = if spec.alternate { prefix } else { "" };
    let sign = format!("{}{prefix}", sign_of(number < 0, spec));
    padded(&grouped(&digits, sign.len(), group, spec), &sign, spec)
}

/// Maximum number of digits of a float that may be requested; no float has more than 800 that differ from 0.
const MAX_PRECISION: usize = 1000;

fn check_precision(precision: usize) -> Result<usize> {
    if precision > MAX_PRECISION {
        return Err(Error::budget(format!("a number is written with more than {MAX_PRECISION} digits")));
    }
    Ok(precision)
}

fn real(float: f64, spec: &Spec) -> Result<String> {
    let kind = spec.kind.unwrap_or('g');
    let precision = check_precision(spec.precision.unwrap_or(6))?;
    let magnitude = float.abs();
    let text = if magnitude.is_nan() {
        "nan".to_owned()
    } else if magnitude.is_infinite() {
        "inf".to_owned()
    } else {
        match kind {
            'f' | 'F' => format!("{magnitude:.precision$}"),
            '%' => format!("{:.precision$}%", magnitude * 100.0),
            'e' | 'E' => exponential(magnitude, precision),
            _ => general(magnitude, precision.max(1), spec.alternate),
        }
    };
    let text = if matches!(kind, 'E' | 'G' | 'F') { text.to_uppercase() } else { text };
    let end = text.find(|next: char| !next.is_ascii_digit()).unwrap_or(text.len());
    let sign = sign_of(float.is_sign_negative() && !float.is_nan(), spec);
    let whole = grouped(&text[..end], sign.len() + text.len() - end, 3, spec);
    padded(&format!("{whole}{}", &text[end..]), sign, spec)
}

fn exponential(magnitude: f64, precision: usize) -> String {
    let text = format!("{magnitude:.precision$e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

/// Formats a float as `%g` does: `precision` significant digits, trailing zeros dropped.
fn general(magnitude: f64, precision: usize, alternate: bool) -> String {
    let scientific = exponential(magnitude, precision - 1);
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let power: i32 = exponent.parse().unwrap_or(0);
    let bound = i32::try_from(precision).unwrap_or(i32::MAX);
    let strip = |text: &str| {
        if alternate || !text.contains('.') {
            return text.to_owned();
        }
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    if power < -4 || power >= bound {
        return format!("{}e{exponent}", strip(mantissa));
    }
    let decimals = usize::try_from(bound - 1 - power).unwrap_or(0);
    strip(&format!("{magnitude:.decimals$}"))
}
