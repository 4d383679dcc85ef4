//! Methods of strings.

use crate::characters::{
    capitalize, is_cased, is_decimal, is_digit, is_letter, is_letter_or_number, is_line_end, is_numeric,
    is_printable, is_space, is_title, title,
};
use crate::error::{Error, Result};
use crate::format;
use crate::given::Given;
use crate::text::check_len;
use crate::value::{MAX_ITEMS, Value};

/// Calls the method of a string in `text.name(given)`.
pub(super) fn call(text: &str, name: &str, given: Given) -> Result<Value> {
    match name {
        "format" => format::braces(text, &given).map(Value::str),
        "format_map" => format_map(text, name, given),
        "strip" | "lstrip" | "rstrip" => strip(text, name, given),
        "split" | "rsplit" => split(text, name, given),
        "startswith" | "endswith" => affix(text, name, given),
        "find" | "rfind" | "index" | "rindex" | "count" => find(text, name, given),
        "partition" | "rpartition" => partition(text, name, given),
        "center" | "ljust" | "rjust" => justify(text, name, given),
        "join" => join(text, name, given),
        "replace" => {
            let [old, new, count] = given.bind(name, ["old", "new", "count"])?;
            let (old, new) = (text_of(name, old)?, text_of(name, new)?);
            let count = count.and_then(|count| count.as_int()).unwrap_or(-1);
            replace(text, &old, &new, count).map(Value::str)
        }
        "removeprefix" | "removesuffix" => {
            let [affix] = given.bind(name, ["affix"])?;
            let affix = text_of(name, affix)?;
            let rest =
                if name == "removeprefix" { text.strip_prefix(&affix) } else { text.strip_suffix(&affix) };
            Ok(Value::str(rest.unwrap_or(text)))
        }
        "splitlines" => {
            let [keep] = given.bind(name, ["keepends"])?;
            let lines = split_lines(text, keep.is_some_and(|keep| keep.is_true()));
            Value::list(lines.into_iter().map(Value::str).collect())
        }
        "zfill" => {
            let [width] = given.bind(name, ["width"])?;
            let width =
                needed(name, width)?.as_int().ok_or_else(|| Error::render("the width must be an integer"))?;
            zero_fill(text, usize::try_from(width).unwrap_or(0)).map(Value::str)
        }
        "expandtabs" => {
            let [size] = given.bind(name, ["tabsize"])?;
            expand_tabs(text, size.and_then(|size| size.as_int()).unwrap_or(8)).map(Value::str)
        }
        _ => {
            let [] = given.bind(name, [])?;
            Ok(plain(text, name))
        }
    }
}

/// Formats a text with the values of a mapping, as `text.format_map(mapping)` does.
fn format_map(text: &str, name: &str, given: Given) -> Result<Value> {
    let [Some(Value::Dict(values))] = given.bind(name, ["mapping"])? else {
        return Err(Error::render("format_map() takes a mapping"));
    };
    let named = values.iter().filter_map(|(key, value)| match key {
        Value::Str(key) => Some((key.clone(), value.clone())),
        _ => None,
    });
    format::braces(text, &Given { positional: Vec::new(), named: named.collect() }).map(Value::str)
}

/// Joins the items of an iterable, as `text.join(iterable)` does.
fn join(text: &str, name: &str, given: Given) -> Result<Value> {
    let [items] = given.bind(name, ["iterable"])?;
    let items = needed(name, items)?.iterate()?;
    let mut out = String::new();
    for (index, item) in items.iter().enumerate() {
        let Value::Str(item) = item else {
            let kind = item.kind();
            return Err(Error::render(format!("sequence item {index}: expected str instance, {kind} found")));
        };
        out.push_str(if index > 0 { text } else { "" });
        out.push_str(item);
        check_len(out.len())?;
    }
    Ok(Value::str(out))
}

/// Calls a method without arguments.
fn plain(text: &str, name: &str) -> Value {
    let all = |class: fn(char) -> bool| Value::Bool(!text.is_empty() && text.chars().all(class));
    match name {
        "upper" => Value::str(text.to_uppercase()),
        "lower" => Value::str(text.to_lowercase()),
        "casefold" => Value::str(text.to_lowercase().replace('ß', "ss").replace('ς', "σ")),
        "title" => Value::str(title(text)),
        "capitalize" => Value::str(capitalize(text)),
        "swapcase" => Value::str(swap_case(text)),
        "isalpha" => all(is_letter),
        "isalnum" => all(is_letter_or_number),
        "isdecimal" => all(is_decimal),
        "isdigit" => all(is_digit),
        "isnumeric" => all(is_numeric),
        "isspace" => all(is_space),
        "isascii" => Value::Bool(text.is_ascii()),
        "isprintable" => Value::Bool(text.chars().all(is_printable)),
        "islower" => Value::Bool(is_lower(text)),
        "isupper" => Value::Bool(is_upper(text)),
        "istitle" => Value::Bool(is_title_case(text)),
        _ => {
            let first = text.chars().next().is_some_and(|first| is_letter(first) || first == '_');
            Value::Bool(first && text.chars().all(|next| is_letter_or_number(next) || next == '_'))
        }
    }
}

fn needed(name: &str, value: Option<Value>) -> Result<Value> {
    value.ok_or_else(|| Error::render(format!("{name}() is missing an argument")))
}

fn text_of(name: &str, value: Option<Value>) -> Result<String> {
    match needed(name, value)? {
        Value::Str(text) => Ok(text.to_string()),
        other => Err(Error::render(format!("{name}() argument must be str, not {}", other.kind()))),
    }
}

/// Whether a text is lower case to `str.islower`: it has cased characters, and all of them are in lower case.
pub(crate) fn is_lower(text: &str) -> bool {
    text.chars().any(is_cased) && text.chars().all(|next| !is_cased(next) || next.is_lowercase())
}

/// Whether a text is upper case to `str.isupper`: it has cased characters, and all of them are in upper case.
pub(crate) fn is_upper(text: &str) -> bool {
    text.chars().any(is_cased) && text.chars().all(|next| !is_cased(next) || next.is_uppercase())
}

fn is_title_case(text: &str) -> bool {
    let mut inside = false;
    let mut any = false;
    for character in text.chars() {
        let starts = character.is_uppercase() || is_title(character);
        if (starts && inside) || (character.is_lowercase() && !inside) {
            return false;
        }
        inside = is_cased(character);
        any |= inside;
    }
    any
}

fn swap_case(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            upper if upper.is_uppercase() => out.extend(upper.to_lowercase()),
            lower if lower.is_lowercase() => out.extend(lower.to_uppercase()),
            other => out.push(other),
        }
    }
    out
}

/// Replaces as `str.replace` does; a negative count replaces all occurrences.
pub(crate) fn replace(text: &str, old: &str, new: &str, count: i128) -> Result<String> {
    let found = if old.is_empty() { text.chars().count() + 1 } else { text.matches(old).count() };
    check_len(text.len().saturating_add(found.saturating_mul(new.len())))?;
    Ok(match usize::try_from(count) {
        Ok(count) => text.replacen(old, new, count),
        Err(_) => text.replace(old, new),
    })
}

fn strip(text: &str, name: &str, given: Given) -> Result<Value> {
    let [chars] = given.bind(name, ["chars"])?;
    let chars = match chars {
        None | Some(Value::None) => None,
        Some(Value::Str(chars)) => Some(chars),
        Some(_) => return Err(Error::render(format!("{name} arg must be None or str"))),
    };
    let strips = |character: char| match &chars {
        Some(chars) => chars.contains(character),
        None => is_space(character),
    };
    Ok(Value::str(match name {
        "lstrip" => text.trim_start_matches(strips),
        "rstrip" => text.trim_end_matches(strips),
        _ => text.trim_matches(strips),
    }))
}

fn split(text: &str, name: &str, given: Given) -> Result<Value> {
    let [separator, limit] = given.bind(name, ["sep", "maxsplit"])?;
    let limit = limit.and_then(|limit| limit.as_int()).and_then(|limit| usize::try_from(limit).ok());
    let from_right = name == "rsplit";
    let parts: Vec<&str> = match separator {
        None | Some(Value::None) => words(text, limit, from_right),
        Some(Value::Str(separator)) if separator.is_empty() => return Err(Error::render("empty separator")),
        Some(Value::Str(separator)) => match (limit, from_right) {
            (None, _) => text.split(&*separator).collect(),
            (Some(limit), false) => text.splitn(limit.saturating_add(1), &*separator).collect(),
            (Some(limit), true) => {
                let mut parts: Vec<&str> = text.rsplitn(limit.saturating_add(1), &*separator).collect();
                parts.reverse();
                parts
            }
        },
        Some(other) => return Err(Error::render(format!("must be str or None, not {}", other.kind()))),
    };
    if parts.len() > MAX_ITEMS {
        return Err(Error::budget(format!("the template splits a text into more than {MAX_ITEMS} parts")));
    }
    Value::list(parts.into_iter().map(Value::str).collect())
}

/// Splits a text into words at white space. After `limit` splits, the rest of the text is kept as one word,
/// without the white space next to the last split.
fn words(text: &str, limit: Option<usize>, from_right: bool) -> Vec<&str> {
    let limit = limit.unwrap_or(usize::MAX);
    let mut rest = text;
    let mut words = Vec::new();
    loop {
        rest = if from_right { rest.trim_end_matches(is_space) } else { rest.trim_start_matches(is_space) };
        if rest.is_empty() {
            break;
        }
        let end = if from_right { rest.rfind(is_space) } else { rest.find(is_space) };
        let (Some(end), true) = (end, words.len() < limit) else {
            words.push(rest);
            break;
        };
        let width = rest[end..].chars().next().map_or(1, char::len_utf8);
        if from_right {
            words.push(&rest[end + width..]);
            rest = &rest[..end];
        } else {
            words.push(&rest[..end]);
            rest = &rest[end + width..];
        }
    }
    if from_right {
        words.reverse();
    }
    words
}

fn affix(text: &str, name: &str, given: Given) -> Result<Value> {
    let [affix, start, end] = given.bind(name, ["affix", "start", "end"])?;
    let window = window(text, start, end)?;
    let has = |affix: &str| match (&window, name) {
        (Some((_, window)), "startswith") => window.starts_with(affix),
        (Some((_, window)), _) => window.ends_with(affix),
        (None, _) => false,
    };
    let wrong = |value: &Value| {
        Error::render(format!("{name} first arg must be str or a tuple of str, not {}", value.kind()))
    };
    match needed(name, affix)? {
        Value::Str(affix) => Ok(Value::Bool(has(&affix))),
        Value::Tuple(affixes) => {
            for affix in &affixes.values {
                let Value::Str(affix) = affix else { return Err(wrong(affix)) };
                if has(affix) {
                    return Ok(Value::Bool(true));
                }
            }
            Ok(Value::Bool(false))
        }
        other => Err(wrong(&other)),
    }
}

/// Returns the characters from `start` to `end` with the index of the first one; `None` if `start` is after
/// `end`.
fn window(text: &str, start: Option<Value>, end: Option<Value>) -> Result<Option<(usize, String)>> {
    let len = text.chars().count();
    let bound = |value: Option<Value>, default: usize| match value {
        None | Some(Value::None) => Ok(default),
        Some(value) => {
            let index =
                value.as_int().ok_or_else(|| Error::render("slice indices must be integers or None"))?;
            let len = i128::try_from(len).unwrap_or(i128::MAX);
            let index = if index < 0 { (index + len).max(0) } else { index };
            Ok(usize::try_from(index).unwrap_or(usize::MAX))
        }
    };
    let (start, end) = (bound(start, 0)?, bound(end, len)?.min(len));
    if start > end {
        return Ok(None);
    }
    Ok(Some((start, text.chars().skip(start).take(end - start).collect())))
}

fn find(text: &str, name: &str, given: Given) -> Result<Value> {
    let [part, start, end] = given.bind(name, ["sub", "start", "end"])?;
    let part = text_of(name, part)?;
    let window = window(text, start, end)?;
    if name == "count" {
        let count = window.map_or(0, |(_, window)| {
            if part.is_empty() { window.chars().count() + 1 } else { window.matches(&part).count() }
        });
        return Ok(Value::Int(i128::try_from(count).unwrap_or(i128::MAX)));
    }
    let found = window.and_then(|(first, window)| {
        let at = if name.starts_with('r') { window.rfind(&part) } else { window.find(&part) };
        Some(first + window[..at?].chars().count())
    });
    match found {
        Some(at) => Ok(Value::Int(i128::try_from(at).unwrap_or(i128::MAX))),
        None if name.ends_with("find") => Ok(Value::Int(-1)),
        None => Err(Error::render("substring not found")),
    }
}

fn partition(text: &str, name: &str, given: Given) -> Result<Value> {
    let [separator] = given.bind(name, ["sep"])?;
    let separator = text_of(name, separator)?;
    if separator.is_empty() {
        return Err(Error::render("empty separator"));
    }
    let parts = if name == "partition" { text.split_once(&separator) } else { text.rsplit_once(&separator) };
    let parts = match (parts, name) {
        (Some((before, behind)), _) => [before, &separator, behind],
        (None, "partition") => [text, "", ""],
        (None, _) => ["", "", text],
    };
    Value::tuple(parts.map(Value::str).to_vec())
}

fn justify(text: &str, name: &str, given: Given) -> Result<Value> {
    let [width, fill] = given.bind(name, ["width", "fillchar"])?;
    let width = needed(name, width)?.as_int().ok_or_else(|| Error::render("the width must be an integer"))?;
    let fill = match fill {
        None => ' ',
        Some(fill) => {
            let mut characters = fill.as_str().unwrap_or_default().chars();
            match (characters.next(), characters.next()) {
                (Some(fill), None) => fill,
                _ => return Err(Error::render("The fill character must be exactly one character long")),
            }
        }
    };
    let width = usize::try_from(width).unwrap_or(0);
    check_len(width.saturating_mul(fill.len_utf8()))?;
    let missing = width.saturating_sub(text.chars().count());
    let left = match name {
        "center" => missing / 2 + (missing & width & 1),
        "rjust" => missing,
        _ => 0,
    };
    let pad = |count: usize| std::iter::repeat_n(fill, count).collect::<String>();
    Ok(Value::str(format!("{}{text}{}", pad(left), pad(missing - left))))
}

/// Splits a text into lines as `str.splitlines` does.
pub(crate) fn split_lines(text: &str, keep_ends: bool) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        if !is_line_end(character) {
            line.push(character);
            continue;
        }
        if keep_ends {
            line.push(character);
        }
        if character == '\r' && characters.next_if_eq(&'\n').is_some() && keep_ends {
            line.push('\n');
        }
        lines.push(std::mem::take(&mut line));
    }
    if !line.is_empty() {
        lines.push(line);
    }
    lines
}

/// Pads a number with zeros after its sign, as `str.zfill` does.
fn zero_fill(text: &str, width: usize) -> Result<String> {
    check_len(width)?;
    let sign = text.len() - text.strip_prefix(['+', '-']).unwrap_or(text).len();
    let missing = width.saturating_sub(text.chars().count());
    Ok(format!("{}{}{}", &text[..sign], "0".repeat(missing), &text[sign..]))
}

fn expand_tabs(text: &str, size: i128) -> Result<String> {
    let size = usize::try_from(size).unwrap_or(0);
    check_len(text.matches('\t').count().saturating_mul(size))?;
    let mut out = String::new();
    let mut column = 0;
    for character in text.chars() {
        match character {
            '\t' if size > 0 => {
                let width = size - column % size;
                out.extend(std::iter::repeat_n(' ', width));
                column += width;
            }
            '\t' => {}
            '\n' | '\r' => {
                out.push(character);
                column = 0;
            }
            _ => {
                out.push(character);
                column += 1;
            }
        }
    }
    Ok(out)
}
