//! `'{:>5}'.format(value)`.

use super::{
    Spec, check_precision, digits, exponential, general, grouped, integer, padded, real, sign_of, truncated,
};
use crate::error::{Error, Result};
use crate::given::Given;
use crate::interpreter::members::{attribute, item};
use crate::text::{ascii, check_len, float_repr, push_repr, str_of};
use crate::value::Value;

/// Formats `text.format(given)`, as far as jinja2's sandbox allows it.
pub(crate) fn braces(text: &str, given: &Given) -> Result<String> {
    braced(text, given, &mut Numbering::default(), 2)
}

/// Numbering of the fields of a format, which is automatic for all (`{}`) or explicit for all (`{0}`).
#[derive(Debug, Default)]
struct Numbering {
    automatic: usize,
    is_manual: bool,
}

impl Numbering {
    fn next(&mut self) -> Result<usize> {
        if self.is_manual {
            return Err(Error::render(
                "cannot switch from manual field specification to automatic field numbering",
            ));
        }
        self.automatic += 1;
        Ok(self.automatic - 1)
    }

    fn stated(&mut self, index: usize) -> Result<usize> {
        if self.automatic > 0 {
            return Err(Error::render(
                "cannot switch from automatic field numbering to manual field specification",
            ));
        }
        self.is_manual = true;
        Ok(index)
    }
}

fn braced(text: &str, given: &Given, numbering: &mut Numbering, depth: usize) -> Result<String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        out.push_str(&rest[..at]);
        let brace = &rest[at..=at];
        let behind = &rest[at + 1..];
        if let Some(more) = behind.strip_prefix(brace) {
            out.push_str(brace);
            rest = more;
            continue;
        }
        if brace == "}" {
            return Err(Error::render("Single '}' encountered in format string"));
        }
        let end = closing(behind).ok_or_else(|| Error::render("expected '}' before end of string"))?;
        if depth == 0 {
            return Err(Error::render("Max string recursion exceeded"));
        }
        out.push_str(&field(&behind[..end], given, numbering, depth)?);
        check_len(out.len())?;
        rest = &behind[end + 1..];
    }
    out.push_str(rest);
    Ok(out)
}

/// Returns the offset of the brace that ends a field.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0usize;
    for (at, character) in text.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth == 0 => return Some(at),
            '}' => depth -= 1,
            _ => {}
        }
    }
    None
}

fn field(field: &str, given: &Given, numbering: &mut Numbering, depth: usize) -> Result<String> {
    let split = field.find(['!', ':']).unwrap_or(field.len());
    let (name, rest) = field.split_at(split);
    let (conversion, spec) = match rest.strip_prefix('!') {
        Some(rest) => match rest.split_once(':') {
            Some((conversion, spec)) => (conversion, spec),
            None => (rest, ""),
        },
        None => ("", rest.strip_prefix(':').unwrap_or("")),
    };
    let mut value = look_up(name, given, numbering)?;
    match conversion {
        "" => {}
        "s" => value = Value::str(str_of(&value)?),
        "r" | "a" => {
            let mut text = String::new();
            push_repr(&mut text, &value)?;
            value = Value::str(if conversion == "a" { ascii(&text) } else { text });
        }
        _ => return Err(Error::render(format!("Unknown conversion specifier '{conversion}'"))),
    }
    let spec = braced(spec, given, numbering, depth - 1)?;
    formatted(&value, &spec)
}

fn look_up(name: &str, given: &Given, numbering: &mut Numbering) -> Result<Value> {
    let end = name.find(['.', '[']).unwrap_or(name.len());
    let (first, mut path) = name.split_at(end);
    let by_index = |index: usize| {
        let missing = || Error::render("Replacement index out of range for positional args tuple");
        given.positional.get(index).cloned().ok_or_else(missing)
    };
    let mut value = if first.is_empty() {
        by_index(numbering.next()?)?
    } else if let Ok(index) = first.parse() {
        by_index(numbering.stated(index)?)?
    } else {
        let found = given.named.iter().find(|(own, _)| **own == *first).map(|(_, value)| value.clone());
        found.ok_or_else(|| Error::render(format!("KeyError: '{first}'")))?
    };
    while !path.is_empty() {
        if let Some(rest) = path.strip_prefix('.') {
            let end = rest.find(['.', '[']).unwrap_or(rest.len());
            value = attribute(&value, &rest[..end].into())?;
            path = &rest[end..];
        } else {
            let end = path.find(']').ok_or_else(|| Error::render("Missing ']' in format string"))?;
            let key = &path[1..end];
            let key = key.parse().map_or_else(|_| Value::str(key), Value::Int);
            value = item(&value, &key)?;
            path = &path[end + 1..];
        }
    }
    Ok(value)
}

fn parse_spec(text: &str) -> Result<Spec> {
    let mut spec = Spec::default();
    let all: Vec<char> = text.chars().collect();
    let mut characters = text.chars().peekable();
    if all.get(1).is_some_and(|next| "<>=^".contains(*next)) {
        spec.fill = characters.next();
        spec.align = characters.next();
    } else {
        spec.align = characters.next_if(|next| "<>=^".contains(*next));
    }
    spec.sign = characters.next_if(|next| "+- ".contains(*next));
    spec.alternate = characters.next_if_eq(&'#').is_some();
    if characters.next_if_eq(&'0').is_some() {
        spec.fill = spec.fill.or(Some('0'));
        spec.align = spec.align.or(Some('='));
    }
    spec.width = digits(&mut characters)?.unwrap_or(0);
    spec.grouping = characters.next_if(|next| ",_".contains(*next));
    if characters.next_if_eq(&'.').is_some() {
        let precision = digits(&mut characters)?;
        spec.precision = Some(precision.ok_or_else(|| Error::render("Format specifier missing precision"))?);
    }
    spec.kind = characters.next();
    if characters.next().is_some() {
        return Err(Error::render("Invalid format specifier"));
    }
    Ok(spec)
}

/// Formats a value as `format(value, spec)` does.
fn formatted(value: &Value, text: &str) -> Result<String> {
    if text.is_empty() {
        return str_of(value);
    }
    let mut spec = parse_spec(text)?;
    let unknown = |kind: char| {
        Error::render(format!("Unknown format code '{kind}' for object of type '{}'", value.kind()))
    };
    let is_int = matches!(value, Value::Int(_) | Value::Bool(_));
    let integer_kind = matches!(spec.kind, None | Some('d' | 'n' | 'x' | 'X' | 'o' | 'b'));
    if is_int && integer_kind && spec.precision.is_some() {
        return Err(Error::render("Precision not allowed in integer format specifier"));
    }
    if matches!(value, Value::Str(_)) && (spec.sign.is_some() || spec.grouping.is_some() || spec.alternate) {
        return Err(Error::render("Sign, grouping and '#' are not allowed in a string format specifier"));
    }
    match (value, spec.kind) {
        (Value::Str(text), None | Some('s')) => {
            if spec.align == Some('=') {
                spec.align = Some('<');
            }
            padded(&truncated(text, spec.precision), "", &spec)
        }
        (Value::Int(_) | Value::Bool(_), None | Some('d' | 'n' | 'x' | 'X' | 'o' | 'b')) => {
            spec.align = spec.align.or(Some('>'));
            integer(value.as_int().unwrap_or(0), 0, &spec)
        }
        (Value::Int(_) | Value::Bool(_), Some('c')) => character(value, spec),
        (
            Value::Int(_) | Value::Float(_) | Value::Bool(_),
            Some('e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%' | 'n'),
        ) => {
            spec.align = spec.align.or(Some('>'));
            real(value.as_float().unwrap_or(0.0), &spec)
        }
        (Value::Float(float), None) => {
            spec.align = spec.align.or(Some('>'));
            match spec.precision {
                Some(precision) if float.is_finite() => {
                    let text = shortest_general(float.abs(), check_precision(precision.max(1))?);
                    padded(&text, sign_of(float.is_sign_negative(), &spec), &spec)
                }
                _ => {
                    let text = float_repr(float.abs());
                    let end = text.find(|next: char| !next.is_ascii_digit()).unwrap_or(text.len());
                    let sign = sign_of(float.is_sign_negative(), &spec);
                    let whole = grouped(&text[..end], sign.len() + text.len() - end, 3, &spec);
                    padded(&format!("{whole}{}", &text[end..]), sign, &spec)
                }
            }
        }
        (Value::Int(_) | Value::Float(_) | Value::Str(_) | Value::Bool(_), Some(kind)) => Err(unknown(kind)),
        _ => {
            let kind = value.kind();
            Err(Error::render(format!("unsupported format string passed to {kind}.__format__")))
        }
    }
}

/// Formats a code as its character, as `'{:c}'.format(value)` does.
fn character(value: &Value, mut spec: Spec) -> Result<String> {
    spec.align = spec.align.or(Some('>'));
    let code = value.as_int().and_then(|code| u32::try_from(code).ok()).and_then(char::from_u32);
    let character = code.ok_or_else(|| Error::render("%c arg not in range(0x110000)"))?;
    padded(&character.to_string(), "", &spec)
}

/// Formats a float with a precision and no conversion: as `%g`, but with at least one digit after the point.
fn shortest_general(magnitude: f64, precision: usize) -> String {
    let scientific = exponential(magnitude, precision - 1);
    let power: i32 = scientific.split_once('e').and_then(|(_, power)| power.parse().ok()).unwrap_or(0);
    let text = general(magnitude, precision, false);
    match i32::try_from(precision) {
        Ok(precision) if power == precision - 1 => {
            let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "+00"));
            let mantissa = match mantissa.contains('.') {
                true => mantissa.trim_end_matches('0').trim_end_matches('.'),
                false => mantissa,
            };
            format!("{mantissa}e{exponent}")
        }
        _ if text.contains(['.', 'e']) => text,
        _ => format!("{text}.0"),
    }
}
