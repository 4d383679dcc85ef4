//! Values as text: Python's `str` and `repr`.

use std::fmt::Write;

use crate::characters::is_printable;
use crate::error::{Error, Result};
use crate::value::{Dict, Value};

/// Maximum length of a text that a template may build, in bytes.
pub(crate) const MAX_TEXT: usize = 1 << 24;

/// Refuses a text of more than [`MAX_TEXT`] bytes.
pub(crate) fn check_len(len: usize) -> Result<()> {
    if len > MAX_TEXT {
        return Err(Error::budget(format!("the template builds a text of more than {MAX_TEXT} bytes")));
    }
    Ok(())
}

/// Returns the text of a value as `str(value)` does.
pub(crate) fn str_of(value: &Value) -> Result<String> {
    let mut out = String::new();
    push_str(&mut out, value)?;
    Ok(out)
}

/// Appends `str(value)` to `out`.
pub(crate) fn push_str(out: &mut String, value: &Value) -> Result<()> {
    match value {
        Value::Undefined(_) => {}
        Value::Str(text) => out.push_str(text),
        _ => push_repr(out, value)?,
    }
    check_len(out.len())
}

/// Appends `repr(value)` to `out`.
pub(crate) fn push_repr(out: &mut String, value: &Value) -> Result<()> {
    check_len(out.len())?;
    match value {
        Value::Undefined(_) => out.push_str("Undefined"),
        Value::None => out.push_str("None"),
        Value::Bool(value) => out.push_str(if *value { "True" } else { "False" }),
        Value::Int(value) => push(out, format_args!("{value}")),
        Value::Float(value) => out.push_str(&float_repr(*value)),
        Value::Str(text) => push_quoted(out, text),
        Value::List(items) => push_items(out, '[', ']', &items.values)?,
        Value::Tuple(items) => {
            push_items(out, '(', ')', &items.values)?;
            if items.values.len() == 1 {
                out.insert(out.len() - 1, ',');
            }
        }
        Value::Dict(dict) => push_dict(out, dict)?,
        Value::View(kind, items) => {
            push(out, format_args!("{kind}("));
            push_items(out, '[', ']', &items.values)?;
            out.push(')');
        }
        Value::Range(span) if span.step == 1 => {
            push(out, format_args!("range({}, {})", span.start, span.stop))
        }
        Value::Range(span) => push(out, format_args!("range({}, {}, {})", span.start, span.stop, span.step)),
        Value::Namespace(attributes) => {
            // A namespace may contain itself. Python stops such a `repr` at its recursion limit.
            let attributes = attributes.try_borrow_mut();
            let attributes = attributes.map_err(|_| Error::budget("a namespace contains itself"))?;
            out.push_str("<Namespace ");
            push_dict(out, &attributes)?;
            out.push('>');
        }
        Value::Iterator(_) => out.push_str("<generator object>"),
        Value::Callable(_) => out.push_str("<function>"),
        Value::Loop(this) => push(out, format_args!("<LoopContext {}/{}>", this.index() + 1, this.len())),
    }
    Ok(())
}

fn push(out: &mut String, arguments: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = out.write_fmt(arguments);
}

fn push_items(out: &mut String, open: char, close: char, values: &[Value]) -> Result<()> {
    out.push(open);
    for (index, value) in values.iter().enumerate() {
        if index > 0 {
            out.push_str(", ");
        }
        push_repr(out, value)?;
    }
    out.push(close);
    Ok(())
}

fn push_dict(out: &mut String, dict: &Dict) -> Result<()> {
    out.push('{');
    for (index, (key, value)) in dict.iter().enumerate() {
        if index > 0 {
            out.push_str(", ");
        }
        push_repr(out, key)?;
        out.push_str(": ");
        push_repr(out, value)?;
    }
    out.push('}');
    Ok(())
}

fn push_quoted(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for character in text.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            same if same == quote => out.extend(['\\', quote]),
            shown if is_printable(shown) => out.push(shown),
            hidden => push_escape(out, hidden),
        }
    }
    out.push(quote);
}

/// Returns `ascii(value)`, where `text` is the value's `repr`: characters outside of ASCII are escaped.
pub(crate) fn ascii(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_ascii() {
            out.push(character);
        } else {
            push_escape(&mut out, character);
        }
    }
    out
}

/// Appends an escape of a character: `\xNN`, `\uNNNN` or `\UNNNNNNNN`.
fn push_escape(out: &mut String, character: char) {
    match u32::from(character) {
        code @ 0..=0xff => push(out, format_args!("\\x{code:02x}")),
        code @ 0x100..=0xffff => push(out, format_args!("\\u{code:04x}")),
        code => push(out, format_args!("\\U{code:08x}")),
    }
}

/// Formats a float as `repr(float)` does: the shortest digits that read back equal, positional for exponents
/// in `-4..16`, else scientific, such as `1e-05`.
pub(crate) fn float_repr(float: f64) -> String {
    if float.is_nan() {
        return "nan".to_owned();
    }
    if float.is_infinite() {
        return if float > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{float:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{mantissa}e{sign}{:02}", exponent.abs());
    }
    let positional = float.to_string();
    if positional.contains('.') { positional } else { format!("{positional}.0") }
}
