//! Filters of text, which take any value as `str(value)`.

use std::sync::LazyLock;

use regex::Regex;

use super::needed;
use crate::characters::{is_letter_or_number, is_space};
use crate::error::{Error, Result};
use crate::format::percent;
use crate::given::Given;
use crate::interpreter::markup::escape;
use crate::methods::{replace, split_lines};
use crate::text::{check_len, str_of};
use crate::value::{Dict, Value};

#[expect(clippy::unwrap_used, reason = "a constant pattern that every test compiles")]
mod patterns {
    use super::{LazyLock, Regex};

    pub(super) static WORD_START: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"[-\s({\[<]+").unwrap());
}

pub(super) fn apply(name: &str, value: &Value, given: Given) -> Result<Value> {
    let text = str_of(value)?;
    match name {
        "trim" => {
            let [chars] = given.bind(name, ["chars"])?;
            let trimmed = match &chars {
                None | Some(Value::None) => text.trim_matches(is_space),
                Some(chars) => {
                    let chars = str_of(chars)?;
                    return Ok(Value::str(text.trim_matches(|next| chars.contains(next))));
                }
            };
            Ok(Value::str(trimmed))
        }
        "replace" => {
            let [old, new, count] = given.bind(name, ["old", "new", "count"])?;
            let (old, new) = (str_of(&needed(name, old)?)?, str_of(&needed(name, new)?)?);
            let count = match count {
                None | Some(Value::None) => -1,
                Some(count) => count.as_int().ok_or_else(|| Error::render("the count must be an integer"))?,
            };
            replace(&text, &old, &new, count).map(Value::str)
        }
        "format" => format(&text, given),
        "indent" => match value {
            Value::Str(text) => indent(text, given),
            Value::Undefined(missing) => Err(missing.error()),
            _ => Err(Error::render(format!("indent takes a text, not {}", value.kind()))),
        },
        "center" => {
            let [width] = given.bind(name, ["width"])?;
            let width = width.and_then(|width| width.as_int()).unwrap_or(80);
            let given = Given { positional: vec![Value::Int(width)], named: Vec::new() };
            crate::methods::call(&Value::str(text), "center", given)
        }
        "truncate" => truncate(value, given),
        _ => {
            let [] = given.bind(name, [])?;
            plain(name, &text)
        }
    }
}

fn plain(name: &str, text: &str) -> Result<Value> {
    Ok(match name {
        "upper" => Value::str(text.to_uppercase()),
        "lower" => Value::str(text.to_lowercase()),
        "capitalize" => Value::str(crate::characters::capitalize(text)),
        "title" => Value::str(title(text)),
        "wordcount" => {
            let words = text.split(|next| !is_letter_or_number(next) && next != '_');
            let count = words.filter(|word| !word.is_empty()).count();
            Value::Int(i128::try_from(count).unwrap_or(i128::MAX))
        }
        "escape" | "e" | "forceescape" => Value::str(escape(text)),
        _ => Value::str(text),
    })
}

/// Converts a text as jinja2's `title`: the first letter after white space, a hyphen or an opening bracket
/// becomes upper case, all others lower case.
fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut push = |word: &str| {
        let mut characters = word.chars();
        out.extend(characters.next().into_iter().flat_map(char::to_uppercase));
        out.push_str(&characters.as_str().to_lowercase());
    };
    let mut position = 0;
    for separator in patterns::WORD_START.find_iter(text) {
        push(&text[position..separator.start()]);
        push(separator.as_str());
        position = separator.end();
    }
    push(&text[position..]);
    out
}

fn format(text: &str, given: Given) -> Result<Value> {
    if !given.positional.is_empty() && !given.named.is_empty() {
        return Err(Error::render("can't handle positional and keyword arguments at the same time"));
    }
    let values = if given.named.is_empty() {
        Value::tuple(given.positional)?
    } else {
        let mut dict = Dict::default();
        given.named.into_iter().try_for_each(|(name, value)| dict.insert(Value::Str(name), value))?;
        Value::dict(dict)?
    };
    percent(text, &values).map(Value::str)
}

fn indent(text: &str, given: Given) -> Result<Value> {
    let [width, first, blank] = given.bind("indent", ["width", "first", "blank"])?;
    let indent = match width {
        None => " ".repeat(4),
        Some(Value::Str(indent)) => indent.to_string(),
        Some(width) => {
            let width = width.as_int().ok_or_else(|| Error::render("indent takes a number or a text"))?;
            let width = usize::try_from(width).unwrap_or(0);
            check_len(width)?;
            " ".repeat(width)
        }
    };
    let is_set = |flag: Option<Value>| flag.is_some_and(|flag| flag.is_true());
    let (first, blank) = (is_set(first), is_set(blank));
    let lines = split_lines(&format!("{text}\n"), false);
    check_len(text.len().saturating_add(lines.len().saturating_mul(indent.len())))?;
    let mut out = if first { indent.clone() } else { String::new() };
    for (index, line) in lines.iter().enumerate() {
        if index > 0 {
            out.push('\n');
            if blank || !line.is_empty() {
                out.push_str(&indent);
            }
        }
        out.push_str(line);
    }
    Ok(Value::str(out))
}

/// Truncates a text. A list that is short enough is returned as it is, as in jinja2.
fn truncate(value: &Value, given: Given) -> Result<Value> {
    let [length, kill, end, leeway] = given.bind("truncate", ["length", "killwords", "end", "leeway"])?;
    let number = |value: Option<Value>, default: i128| match value {
        None | Some(Value::None) => default,
        Some(value) => value.as_int().unwrap_or(default),
    };
    let (length, leeway) = (number(length, 255), number(leeway, 5));
    let end = end.map_or(Ok("...".to_owned()), |end| str_of(&end))?;
    let count = |text: &str| i128::try_from(text.chars().count()).unwrap_or(i128::MAX);
    if length < count(&end) || leeway < 0 {
        return Err(Error::render(format!("expected length >= {}, got {length}", count(&end))));
    }
    if i128::try_from(value.len()?).unwrap_or(i128::MAX) <= length.saturating_add(leeway) {
        return Ok(value.clone());
    }
    let Value::Str(text) = value else {
        return Err(Error::render(format!("truncate takes a text, not {}", value.kind())));
    };
    let kept = usize::try_from(length - count(&end)).unwrap_or(0);
    let cut: String = text.chars().take(kept).collect();
    let cut = match cut.rsplit_once(' ') {
        Some((words, _)) if !kill.is_some_and(|kill| kill.is_true()) => words.to_owned(),
        _ => cut,
    };
    Ok(Value::str(cut + &end))
}
