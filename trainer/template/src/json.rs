//! `json.dumps`, which transformers gives templates as the filter `tojson`.

use crate::error::{Error, Result};
use crate::text::{check_len, float_repr};
use crate::value::{Dict, Value};

/// Options of a call of `json.dumps`.
#[derive(Clone, Debug)]
pub(crate) struct JsonStyle {
    /// Indentation of one level; `None` writes everything on one line.
    pub(crate) indent: Option<String>,
    pub(crate) item_separator: String,
    pub(crate) key_separator: String,
    /// Whether everything outside ASCII is written as `\uXXXX`.
    pub(crate) ensure_ascii: bool,
    /// Whether keys are sorted.
    pub(crate) sort_keys: bool,
}

/// Serializes a value as `json.dumps(value)` does.
pub(crate) fn dumps(value: &Value, style: &JsonStyle) -> Result<String> {
    let mut out = String::new();
    write(&mut out, value, style, 0)?;
    Ok(out)
}

fn write(out: &mut String, value: &Value, style: &JsonStyle, depth: usize) -> Result<()> {
    check_len(out.len())?;
    match value {
        Value::None => out.push_str("null"),
        Value::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
        Value::Int(value) => out.push_str(&value.to_string()),
        Value::Float(value) => out.push_str(&number(*value)),
        Value::Str(text) => push_string(out, text, style.ensure_ascii),
        Value::List(items) | Value::Tuple(items) => {
            write_items(out, '[', ']', style, depth, items.values.iter(), |out, item| {
                write(out, item, style, depth + 1)
            })?;
        }
        Value::Dict(dict) => {
            let entries = entries(dict, style)?;
            write_items(out, '{', '}', style, depth, entries.iter(), |out, (key, value)| {
                push_string(out, key, style.ensure_ascii);
                out.push_str(&style.key_separator);
                write(out, value, style, depth + 1)
            })?;
        }
        _ => {
            let kind = value.kind();
            return Err(Error::render(format!("Object of type {kind} is not JSON serializable")));
        }
    }
    Ok(())
}

fn number(float: f64) -> String {
    match float {
        f64::INFINITY => "Infinity".to_owned(),
        f64::NEG_INFINITY => "-Infinity".to_owned(),
        float if float.is_nan() => "NaN".to_owned(),
        float => float_repr(float),
    }
}

/// Returns the entries with their keys as text: `json.dumps({1: True})` is `{"1": true}`.
fn entries<'a>(dict: &'a Dict, style: &JsonStyle) -> Result<Vec<(String, &'a Value)>> {
    let mut entries: Vec<(&Value, &Value)> = dict.iter().collect();
    if style.sort_keys {
        let keys: Vec<Value> = entries.iter().map(|(key, _)| (*key).clone()).collect();
        entries = crate::order::sorted(&keys, false)?.into_iter().map(|at| entries[at]).collect();
    }
    entries.into_iter().map(|(key, value)| Ok((key_text(key)?, value))).collect()
}

fn key_text(key: &Value) -> Result<String> {
    Ok(match key {
        Value::Str(text) => text.to_string(),
        Value::None => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Int(value) => value.to_string(),
        Value::Float(value) => number(*value),
        _ => {
            let kind = key.kind();
            return Err(Error::render(format!("keys must be str, int, float, bool or None, not {kind}")));
        }
    })
}

fn write_items<T>(
    out: &mut String,
    open: char,
    close: char,
    style: &JsonStyle,
    depth: usize,
    items: impl ExactSizeIterator<Item = T>,
    mut write_item: impl FnMut(&mut String, T) -> Result<()>,
) -> Result<()> {
    let line = |out: &mut String, depth: usize| {
        if let Some(indent) = &style.indent {
            out.push('\n');
            out.push_str(&indent.repeat(depth));
        }
    };
    let is_empty = items.len() == 0;
    out.push(open);
    for (index, item) in items.enumerate() {
        if index > 0 {
            out.push_str(&style.item_separator);
        }
        line(out, depth + 1);
        write_item(out, item)?;
    }
    if !is_empty {
        line(out, depth);
    }
    out.push(close);
    Ok(())
}

fn push_string(out: &mut String, text: &str, ensure_ascii: bool) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            control if control < ' ' => {
                out.push_str(&format!("\\u{:04x}", u32::from(control)));
            }
            wide if ensure_ascii && wide > '~' => {
                let units = &mut [0; 2];
                for unit in wide.encode_utf16(units) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            plain => out.push(plain),
        }
    }
    out.push('"');
}
