//! Filters of numbers.

use crate::characters::{ascii_digits, is_space};
use crate::error::{Error, Result};
use crate::format::truncate;
use crate::given::Given;
use crate::value::Value;

pub(super) fn apply(name: &str, value: &Value, given: Given) -> Result<Value> {
    match name {
        "abs" => {
            let [] = given.bind(name, [])?;
            match (value.as_int(), value.as_float()) {
                (Some(value), _) => {
                    let absolute = value.checked_abs().map(Value::Int);
                    absolute.ok_or_else(|| Error::budget("the integer is too large"))
                }
                (None, Some(value)) => Ok(Value::Float(value.abs())),
                _ => Err(undefined(value, format!("bad operand type for abs(): '{}'", value.kind()))),
            }
        }
        "round" => round(value, given),
        "int" => int(value, given),
        _ => {
            let [default] = given.bind(name, ["default"])?;
            let parsed = match value {
                Value::Str(text) => parse_float(text),
                Value::Undefined(missing) => return Err(missing.error()),
                other => other.as_float(),
            };
            Ok(parsed.map_or_else(|| default.unwrap_or(Value::Float(0.0)), Value::Float))
        }
    }
}

fn undefined(value: &Value, message: String) -> Error {
    match value {
        Value::Undefined(missing) => missing.error(),
        _ => Error::render(message),
    }
}

/// `round` of integers gives integers, `ceil` and `floor` give floats.
fn round(value: &Value, given: Given) -> Result<Value> {
    let [precision, method] = given.bind("round", ["precision", "method"])?;
    let precision = match precision {
        None => 0,
        Some(precision) => {
            let digits = precision.as_int().and_then(|digits| i32::try_from(digits).ok());
            digits
                .filter(|digits| digits.abs() < 400)
                .ok_or_else(|| Error::render("round takes an integer precision"))?
        }
    };
    let method = method.unwrap_or_else(|| Value::str("common"));
    let float = value.as_float();
    let float =
        float.ok_or_else(|| undefined(value, format!("type {} doesn't define round", value.kind())))?;
    let scale = 10f64.powi(precision);
    match method.as_str() {
        Some("common") => match value.as_int() {
            Some(whole) => {
                let rounded = round_int(whole, precision).map(Value::Int);
                rounded.ok_or_else(|| Error::budget("the integer is too large"))
            }
            None => Ok(Value::Float(round_float(float, precision))),
        },
        // Python's ceil is an integer, which has no negative zero.
        Some("ceil") => Ok(Value::Float(((float * scale).ceil() + 0.0) / scale)),
        Some("floor") => Ok(Value::Float(((float * scale).floor() + 0.0) / scale)),
        _ => Err(Error::render("method must be common, ceil or floor")),
    }
}

/// Rounds to a multiple of a power of ten; ties go to the even multiple.
fn round_int(value: i128, precision: i32) -> Option<i128> {
    let digits = u32::try_from(-precision.min(0)).ok()?;
    // The only multiple of a larger power of ten that fits into `i128` is 0.
    if digits > 36 {
        return Some(0);
    }
    let scale = 10i128.pow(digits);
    let (quotient, rem) = (value.div_euclid(scale), value.rem_euclid(scale));
    let up = rem * 2 > scale || (rem * 2 == scale && quotient % 2 != 0);
    (quotient + i128::from(up)).checked_mul(scale)
}

/// Rounds as Python's `round(float, digits)` does: by the exact value, with ties to even digits.
fn round_float(value: f64, precision: i32) -> f64 {
    if !value.is_finite() {
        return value;
    }
    match usize::try_from(precision) {
        Ok(digits) => format!("{value:.digits$}").parse().unwrap_or(value),
        Err(_) => {
            let scale = 10f64.powi(-precision);
            (value / scale).round_ties_even() * scale
        }
    }
}

fn int(value: &Value, given: Given) -> Result<Value> {
    let [default, base] = given.bind("int", ["default", "base"])?;
    let base = base.map_or(Some(10), |base| base.as_int());
    let base = base.ok_or_else(|| Error::render("the base of int must be an integer"))?;
    let parsed = match value {
        Value::Str(text) => match (parse_int(text, base), parse_float(text)) {
            (None, Some(float)) if float.is_finite() => Some(truncate(float)?),
            (parsed, _) => parsed,
        },
        // jinja2 returns the default for NaN, and Python raises for infinity. A float that is too large for
        // `i128` fails too.
        Value::Float(float) if float.is_nan() => None,
        Value::Float(float) => Some(truncate(*float)?),
        Value::Undefined(missing) => return Err(missing.error()),
        other => other.as_int(),
    };
    Ok(parsed.map_or_else(|| default.unwrap_or(Value::Int(0)), Value::Int))
}

/// Parses a text as `int(text, base)` does.
fn parse_int(text: &str, base: i128) -> Option<i128> {
    let text = ascii_digits(text.trim_matches(is_space)).to_lowercase();
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(&text)),
    };
    let prefix = match digits.get(..2) {
        Some("0x") => 16,
        Some("0o") => 8,
        Some("0b") => 2,
        _ => 0,
    };
    let (radix, digits) = match base {
        0 if prefix > 0 => (prefix, &digits[2..]),
        0 => (10, digits),
        base if base == i128::from(prefix) => (prefix, &digits[2..]),
        2..=36 => (u32::try_from(base).ok()?, digits),
        _ => return None,
    };
    let digits = without_underscores(digits)?;
    let value = i128::from_str_radix(&digits, radix)
        .ok()
        .filter(|_| digits.starts_with(|c: char| c.is_alphanumeric()));
    value.map(|value| if negative { -value } else { value })
}

/// Removes the underscores that Python allows between two digits.
fn without_underscores(digits: &str) -> Option<String> {
    let wrong = digits.starts_with('_') || digits.ends_with('_') || digits.contains("__");
    (!wrong).then(|| digits.replace('_', ""))
}

/// Parses a text as `float(text)` does.
fn parse_float(text: &str) -> Option<f64> {
    let text = without_underscores(&ascii_digits(text.trim_matches(is_space)))?;
    text.parse().ok()
}
