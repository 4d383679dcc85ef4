//! `'%5.2f' % value`.

use std::iter::Peekable;
use std::str::Chars;

use super::{Spec, digits, integer, padded, real, truncate, truncated};
use crate::error::{Error, Result};
use crate::text::{ascii, check_len, push_repr, str_of};
use crate::value::Value;

/// Formats `format % values`, as Python does.
pub(crate) fn percent(format: &str, values: &Value) -> Result<String> {
    let positional = match values {
        Value::Tuple(items) => items.values.clone(),
        other => vec![other.clone()],
    };
    let mut next = positional.into_iter();
    let mut used_mapping = false;
    let mut out = String::new();
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        let mut characters = rest[at + 1..].chars().peekable();
        let Specifier { key, spec, kind } = Specifier::read(&mut characters, &mut next)?;
        let behind: String = characters.collect();
        rest = &rest[rest.len() - behind.len()..];
        if kind == '%' {
            out.push('%');
            continue;
        }
        let value = match (&key, values) {
            (Some(key), Value::Dict(dict)) => {
                used_mapping = true;
                dict.get_text(key).cloned().ok_or_else(|| Error::render(format!("KeyError: '{key}'")))?
            }
            (Some(_), _) => return Err(Error::render("format requires a mapping")),
            (None, _) => {
                next.next().ok_or_else(|| Error::render("not enough arguments for format string"))?
            }
        };
        out.push_str(&converted(&value, kind, spec)?);
        check_len(out.len())?;
    }
    out.push_str(rest);
    // A value that has items counts as a mapping, and a format need not use all entries of a mapping.
    let has_items = matches!(values, Value::Dict(_) | Value::List(_) | Value::Range(_) | Value::Undefined(_));
    let is_mapping = used_mapping || has_items;
    if next.next().is_some() && !is_mapping {
        return Err(Error::render("not all arguments converted during string formatting"));
    }
    Ok(out)
}

/// A conversion specifier, such as `%(name)-5.2f`.
struct Specifier {
    /// Key of the value in a mapping.
    key: Option<String>,
    spec: Spec,
    /// The character that names the conversion.
    kind: char,
}

impl Specifier {
    /// Reads what follows `%`. Width and precision are taken from `values` where they are `*`.
    fn read(characters: &mut Peekable<Chars<'_>>, values: &mut dyn Iterator<Item = Value>) -> Result<Self> {
        let mut key = None;
        if characters.next_if_eq(&'(').is_some() {
            key = Some(characters.by_ref().take_while(|next| *next != ')').collect::<String>());
        }
        let mut spec = Spec::default();
        while let Some(flag) = characters.next_if(|next| "-+ #0".contains(*next)) {
            match flag {
                '-' => spec.align = Some('<'),
                '0' => spec.fill = Some('0'),
                '#' => spec.alternate = true,
                ' ' if spec.sign.is_some() => {}
                sign => spec.sign = Some(sign),
            }
        }
        if characters.next_if_eq(&'*').is_some() {
            let width = star(values.next())?;
            if width < 0 {
                spec.align = Some('<');
            }
            spec.width = usize::try_from(width.unsigned_abs()).unwrap_or(usize::MAX);
        } else {
            spec.width = digits(characters)?.unwrap_or(0);
        }
        if characters.next_if_eq(&'.').is_some() {
            spec.precision = Some(if characters.next_if_eq(&'*').is_some() {
                usize::try_from(star(values.next())?).unwrap_or(0)
            } else {
                digits(characters)?.unwrap_or(0)
            });
        }
        while characters.next_if(|next| "hlL".contains(*next)).is_some() {}
        let kind = characters.next().ok_or_else(|| Error::render("incomplete format"))?;
        Ok(Self { key, spec, kind })
    }
}

/// Returns the number that replaces a `*`.
fn star(value: Option<Value>) -> Result<i128> {
    value.and_then(|value| value.as_int()).ok_or_else(|| Error::render("* wants int"))
}

/// Formats a value by the conversion `kind` of `%`.
fn converted(value: &Value, kind: char, mut spec: Spec) -> Result<String> {
    let left = spec.align == Some('<');
    match kind {
        's' | 'r' | 'a' => {
            let mut text = String::new();
            if kind == 's' {
                text.push_str(&str_of(value)?)
            } else {
                push_repr(&mut text, value)?
            }
            if kind == 'a' {
                text = ascii(&text);
            }
            spec.fill = None;
            spec.align = Some(if left { '<' } else { '>' });
            padded(&truncated(&text, spec.precision), "", &spec)
        }
        'c' => {
            let text = match value {
                Value::Str(text) if text.chars().count() == 1 => text.to_string(),
                other => {
                    let code =
                        other.as_int().and_then(|code| u32::try_from(code).ok()).and_then(char::from_u32);
                    code.ok_or_else(|| Error::render("%c requires int or char"))?.to_string()
                }
            };
            spec.align = Some(if left { '<' } else { '>' });
            padded(&text, "", &spec)
        }
        _ => number(value, kind, spec),
    }
}

/// Formats a number by the conversion `kind` of `%`.
fn number(value: &Value, kind: char, mut spec: Spec) -> Result<String> {
    let left = spec.align == Some('<');
    let zero = spec.fill == Some('0') && !left;
    spec.align = Some(if zero {
        '='
    } else if left {
        '<'
    } else {
        '>'
    });
    spec.fill = zero.then_some('0');
    let kind = if matches!(kind, 'i' | 'u') { 'd' } else { kind };
    let whole = match value {
        Value::Float(float) if matches!(kind, 'd') => Value::Int(truncate(*float)?),
        Value::Int(_) | Value::Bool(_) | Value::Float(_) => value.clone(),
        other => {
            return Err(Error::render(format!("%{kind} format: a number is required, not {}", other.kind())));
        }
    };
    spec.kind = Some(kind);
    match kind {
        'd' => {
            let digits = spec.precision.take();
            integer(whole.as_int().unwrap_or(0), digits.unwrap_or(0), &spec)
        }
        'x' | 'X' | 'o' => {
            let Some(number) = whole.as_int() else {
                return Err(Error::render(format!("%{kind} format: an integer is required, not float")));
            };
            let digits = spec.precision.take();
            integer(number, digits.unwrap_or(0), &spec)
        }
        'e' | 'E' | 'f' | 'F' | 'g' | 'G' => real(whole.as_float().unwrap_or(0.0), &spec),
        _ => Err(Error::render(format!("unsupported format character '{kind}'"))),
    }
}
