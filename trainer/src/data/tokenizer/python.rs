//! Formatting of values as in Python: chat templates are written for Jinja on Python, where output is
//! `str(value)` and `tojson` is `json.dumps`.

use std::fmt::Write;

use minijinja::Value;
use minijinja::value::ValueKind;

/// Options of `json.dumps`.
#[derive(Clone, Debug)]
pub(super) struct JsonStyle {
    /// Indentation of one level; `None` writes one line.
    pub indent: Option<String>,
    /// Separator between items.
    pub item_separator: String,
    /// Separator between key and value.
    pub key_separator: String,
    /// Whether characters outside ASCII are written as `\uXXXX`.
    pub ensure_ascii: bool,
    /// Whether keys are sorted by code point instead of kept in their order.
    pub sort_keys: bool,
}

impl Default for JsonStyle {
    fn default() -> Self {
        let (item_separator, key_separator) = (", ".to_owned(), ": ".to_owned());
        Self { indent: None, item_separator, key_separator, ensure_ascii: false, sort_keys: false }
    }
}

/// Formats a value as `json.dumps(value)`; `None` if it contains something without a JSON form, such as an
/// undefined value.
pub(super) fn json_dumps(value: &Value, style: &JsonStyle) -> Option<String> {
    let mut out = String::new();
    write_json(&mut out, value, style, 0)?;
    Some(out)
}

fn write_json(out: &mut String, value: &Value, style: &JsonStyle, depth: usize) -> Option<()> {
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push_str(&number(value, ["NaN", "Infinity", "-Infinity"])),
        ValueKind::String => write_json_string(out, value.as_str()?, style.ensure_ascii),
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter().ok()?.collect();
            write_items(out, ('[', ']'), style, depth, &items, |out, item| {
                write_json(out, item, style, depth + 1)
            })?;
        }
        ValueKind::Map => {
            let mut keys: Vec<Value> = value.try_iter().ok()?.collect();
            if style.sort_keys {
                keys.sort();
            }
            write_items(out, ('{', '}'), style, depth, &keys, |out, key| {
                write_json_string(out, &key_text(key), style.ensure_ascii);
                out.push_str(&style.key_separator);
                write_json(out, &value.get_item(key).ok()?, style, depth + 1)
            })?;
        }
        _ => return None,
    }
    Some(())
}

fn write_items(
    out: &mut String,
    (open, close): (char, char),
    style: &JsonStyle,
    depth: usize,
    items: &[Value],
    mut write_item: impl FnMut(&mut String, &Value) -> Option<()>,
) -> Option<()> {
    let line = |out: &mut String, depth: usize| {
        if let Some(indent) = &style.indent {
            out.push('\n');
            out.push_str(&indent.repeat(depth));
        }
    };
    out.push(open);
    for (idx, item) in items.iter().enumerate() {
        if idx > 0 {
            out.push_str(&style.item_separator);
        }
        line(out, depth + 1);
        write_item(out, item)?;
    }
    if !items.is_empty() {
        line(out, depth);
    }
    out.push(close);
    Some(())
}

/// Converts a key to a string: `json.dumps({1: True})` is `{"1": true}`.
fn key_text(key: &Value) -> String {
    match key.kind() {
        ValueKind::None => "null".to_owned(),
        ValueKind::Bool => key.is_true().to_string(),
        _ => key.as_str().map_or_else(|| number(key, ["NaN", "Infinity", "-Infinity"]), str::to_owned),
    }
}

fn write_json_string(out: &mut String, text: &str, ensure_ascii: bool) {
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
            control if control < ' ' => push_escape(out, 'u', 4, u32::from(control)),
            wide if ensure_ascii && !wide.is_ascii() => {
                let mut units = [0; 2];
                wide.encode_utf16(&mut units)
                    .iter()
                    .for_each(|unit| push_escape(out, 'u', 4, u32::from(*unit)));
            }
            plain => out.push(plain),
        }
    }
    out.push('"');
}

/// Formats a value as `str(value)`, which `{{ value }}` prints.
pub(super) fn str_text(value: &Value) -> String {
    match value.kind() {
        ValueKind::Undefined => String::new(),
        ValueKind::String => value.as_str().unwrap_or_default().to_owned(),
        _ => repr(value),
    }
}

/// Formats a value as `repr(value)`, the form inside printed lists and dictionaries.
fn repr(value: &Value) -> String {
    match value.kind() {
        ValueKind::None => "None".to_owned(),
        ValueKind::Bool => if value.is_true() { "True" } else { "False" }.to_owned(),
        ValueKind::Number => number(value, ["nan", "inf", "-inf"]),
        ValueKind::String => repr_string(value.as_str().unwrap_or_default()),
        // A slice of a list is lazy in minijinja and a list in Python.
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<String> = value.try_iter().into_iter().flatten().map(|item| repr(&item)).collect();
            format!("[{}]", items.join(", "))
        }
        ValueKind::Map
            if value.as_object().is_some_and(|object| object.repr() == minijinja::value::ObjectRepr::Map) =>
        {
            let pair =
                |key: Value| format!("{}: {}", repr(&key), repr(&value.get_item(&key).unwrap_or_default()));
            let items: Vec<String> = value.try_iter().into_iter().flatten().map(pair).collect();
            format!("{{{}}}", items.join(", "))
        }
        _ => value.to_string(),
    }
}

fn repr_string(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::from(quote);
    for character in text.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            same if same == quote => out.extend(['\\', quote]),
            control if control < ' ' || control == '\u{7f}' => {
                push_escape(&mut out, 'x', 2, u32::from(control))
            }
            plain => out.push(plain),
        }
    }
    out.push(quote);
    out
}

fn push_escape(out: &mut String, kind: char, width: usize, code: u32) {
    // Writing to a string cannot fail.
    let _ = write!(out, "\\{kind}{code:0width$x}");
}

/// Formats an integer unchanged, a float as `repr` does. `odd` holds the names of NaN and of the two
/// infinities.
fn number(value: &Value, odd: [&str; 3]) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    match f64::try_from(value.clone()) {
        Ok(float) if float.is_nan() => odd[0].to_owned(),
        Ok(f64::INFINITY) => odd[1].to_owned(),
        Ok(f64::NEG_INFINITY) => odd[2].to_owned(),
        Ok(float) => float_repr(float),
        Err(_) => value.to_string(),
    }
}

/// Formats a float with the shortest digits that read back equal; positional for exponents in `-4..16`, else
/// as `1e-05`.
fn float_repr(float: f64) -> String {
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn value(json: serde_json::Value) -> Value {
        Value::from_serialize(json)
    }

    /// Expected texts are CPython 3.11's.
    #[test]
    fn floats_are_written_as_python_does() {
        let cases = [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (-2.5, "-2.5"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.25e100, "1.25e+100"),
            (0.0, "0.0"),
        ];
        for (float, text) in cases {
            assert_eq!(float_repr(float), text);
        }
    }

    #[test]
    fn json_keeps_key_order_and_pythons_separators() {
        let data = value(json!({"b": [1, 2.0, null, true], "a": {"é": "x\n\"<>\u{1}"}, "c": [], "d": {}}));
        let text = json_dumps(&data, &JsonStyle::default()).unwrap();
        assert_eq!(text, r#"{"b": [1, 2.0, null, true], "a": {"é": "x\n\"<>\u0001"}, "c": [], "d": {}}"#);
    }

    #[test]
    fn json_styles_follow_their_arguments() {
        let data = value(json!({"b": ["é😀"], "a": 1, "c": []}));
        let indented =
            JsonStyle { indent: Some("  ".into()), item_separator: ",".into(), ..JsonStyle::default() };
        let expected = "{\n  \"b\": [\n    \"é😀\"\n  ],\n  \"a\": 1,\n  \"c\": []\n}";
        assert_eq!(json_dumps(&data, &indented).unwrap(), expected);
        let ascii = JsonStyle { ensure_ascii: true, sort_keys: true, ..JsonStyle::default() };
        assert_eq!(json_dumps(&data, &ascii).unwrap(), r#"{"a": 1, "b": ["\u00e9\ud83d\ude00"], "c": []}"#);
        assert_eq!(json_dumps(&Value::UNDEFINED, &ascii), None);
    }

    #[test]
    fn printed_containers_look_like_python() {
        let data = value(json!({"a": [1, "it's", "say \"hi\"", null, false], "b": {"c": 1.0, "d": "\n"}}));
        assert_eq!(
            str_text(&data),
            r#"{'a': [1, "it's", 'say "hi"', None, False], 'b': {'c': 1.0, 'd': '\n'}}"#
        );
        assert_eq!(str_text(&Value::from("plain")), "plain");
        assert_eq!(str_text(&Value::UNDEFINED), "");
    }
}
