//! The filters of jinja2 and what each of them is charged: `value|name`.

mod collection;
mod number;
mod text;

use crate::error::{Error, Result};
use crate::given::Given;
use crate::interpreter::{Interpreter, members};
use crate::json::{JsonStyle, dumps};
use crate::text::str_of;
use crate::value::Value;

const NAMES: [&str; 46] = [
    "abs",
    "attr",
    "batch",
    "capitalize",
    "center",
    "count",
    "d",
    "default",
    "dictsort",
    "e",
    "escape",
    "first",
    "float",
    "forceescape",
    "format",
    "groupby",
    "indent",
    "int",
    "items",
    "join",
    "last",
    "length",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "slice",
    "sort",
    "string",
    "sum",
    "title",
    "tojson",
    "trim",
    "truncate",
    "unique",
    "upper",
    "wordcount",
];

/// Filters of jinja2 that are not implemented, because chat templates have no use for them.
const MISSING: [&str; 8] =
    ["pprint", "filesizeformat", "random", "striptags", "urlencode", "wordwrap", "urlize", "xmlattr"];

/// Whether jinja2 has a filter of this name.
pub(crate) fn exists(name: &str) -> bool {
    NAMES.contains(&name) || MISSING.contains(&name)
}

/// Filters that read no more than the length or one item of a list.
const QUICK: [&str; 6] = ["length", "count", "first", "last", "default", "d"];
/// Filters that read the items of a list but not what the items contain, except for the work on each item.
const SHALLOW: [&str; 11] = [
    "attr",
    "batch",
    "items",
    "list",
    "map",
    "reject",
    "rejectattr",
    "reverse",
    "select",
    "selectattr",
    "slice",
];

/// Filters whose text counts as escaped.
const ESCAPING: [&str; 4] = ["escape", "e", "forceescape", "safe"];
/// Filters that give an escaped text for an escaped text.
const KEEPING: [&str; 9] =
    ["string", "upper", "lower", "capitalize", "trim", "indent", "center", "truncate", "reverse"];

/// Applies the filter in `value|name(given)`, and charges for what it reads and creates.
pub(crate) fn apply(
    interpreter: &mut Interpreter<'_>,
    name: &str,
    value: Value,
    given: Given,
) -> Result<Value> {
    let is_quick = QUICK.contains(&name) && value.as_str().is_none();
    interpreter.charge(match &value {
        _ if is_quick => 1,
        _ if SHALLOW.contains(&name) => 1 + value.steps(),
        _ => 1 + value.steps() + value.size(),
    })?;
    interpreter.charge(given.steps())?;
    let is_escaped = interpreter.is_escaped(&value);
    if is_escaped && matches!(name, "escape" | "e") {
        let [] = given.bind(name, [])?;
        return Ok(value);
    }
    let filtered = apply_unbounded(interpreter, name, value, given)?;
    if ESCAPING.contains(&name) || (is_escaped && KEEPING.contains(&name)) {
        interpreter.mark_escaped(&filtered);
    }
    if !is_quick {
        interpreter.charge(filtered.steps())?;
    }
    Ok(filtered)
}

fn apply_unbounded(
    interpreter: &mut Interpreter<'_>,
    name: &str,
    value: Value,
    given: Given,
) -> Result<Value> {
    match name {
        "default" | "d" => default(value, given),
        "tojson" => to_json(&value, given),
        "abs" | "round" | "int" | "float" => number::apply(name, &value, given),
        "string" | "upper" | "lower" | "capitalize" | "title" | "trim" | "replace" | "format" | "indent"
        | "center" | "truncate" | "wordcount" | "escape" | "e" | "forceescape" | "safe" => {
            text::apply(name, &value, given)
        }
        "map" | "select" | "reject" | "selectattr" | "rejectattr" => choose(interpreter, name, &value, given),
        _ if MISSING.contains(&name) => Err(Error::render(format!("The filter '{name}' is not supported."))),
        _ if exists(name) => collection::apply(interpreter, name, &value, given),
        _ => Err(Error::render(format!("No filter named '{name}'."))),
    }
}

pub(super) fn needed(name: &str, value: Option<Value>) -> Result<Value> {
    value.ok_or_else(|| Error::render(format!("the filter '{name}' is missing an argument")))
}

fn default(value: Value, given: Given) -> Result<Value> {
    let [default, boolean] = given.bind("default", ["default_value", "boolean"])?;
    let replaces = match boolean {
        Some(boolean) if boolean.is_true() => !value.is_true(),
        _ => matches!(value, Value::Undefined(_)),
    };
    Ok(if replaces { default.unwrap_or_else(|| Value::str("")) } else { value })
}

/// Serializes a value as transformers' `tojson`, which is `json.dumps` without escapes for HTML.
fn to_json(value: &Value, given: Given) -> Result<Value> {
    let [ascii, indent, separators, sort_keys] =
        given.bind("tojson", ["ensure_ascii", "indent", "separators", "sort_keys"])?;
    let indent = match indent {
        None | Some(Value::None) => None,
        Some(Value::Str(text)) => Some(text.to_string()),
        Some(other) => {
            let width =
                other.as_int().ok_or_else(|| Error::render("tojson indent is an integer or a text"))?;
            let width = usize::try_from(width).unwrap_or(0);
            crate::text::check_len(width.saturating_mul(1000))?;
            Some(" ".repeat(width))
        }
    };
    let (item_separator, key_separator) = match separators {
        None | Some(Value::None) => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
        Some(pair) => match pair.iterate()?.as_slice() {
            [Value::Str(item), Value::Str(key)] => (item.to_string(), key.to_string()),
            _ => return Err(Error::render("tojson separators are a pair of texts")),
        },
    };
    let is_set = |flag: Option<Value>| flag.is_some_and(|flag| flag.is_true());
    let style = JsonStyle {
        indent,
        item_separator,
        key_separator,
        ensure_ascii: is_set(ascii),
        sort_keys: is_set(sort_keys),
    };
    dumps(value, &style).map(Value::str)
}

/// Applies `map`, or a filter that selects items by a test.
fn choose(interpreter: &mut Interpreter<'_>, name: &str, value: &Value, mut given: Given) -> Result<Value> {
    // jinja2 checks whether the value is true before it iterates, so `None` counts as empty.
    let items = if value.is_true() { value.iterate()? } else { Vec::new() };
    interpreter.charge(items.len())?;
    if name == "map" {
        return map(interpreter, items, given);
    }
    let attribute = if name.ends_with("attr") {
        if given.positional.is_empty() {
            return Err(Error::render(format!("the filter '{name}' is missing an attribute")));
        }
        Some(given.positional.remove(0))
    } else {
        None
    };
    let test = if given.positional.is_empty() { None } else { Some(str_of(&given.positional.remove(0))?) };
    let mut chosen = Vec::new();
    for item in items {
        let subject = match &attribute {
            Some(attribute) => members::path(&item, attribute, None)?,
            None => item.clone(),
        };
        let holds = match &test {
            Some(test) => {
                let given = Given { positional: given.positional.clone(), named: given.named.clone() };
                interpreter.check(test, &subject, given)?
            }
            None => subject.is_true(),
        };
        if holds != name.starts_with("reject") {
            chosen.push(item);
        }
    }
    Value::iterator(chosen)
}

fn map(interpreter: &mut Interpreter<'_>, items: Vec<Value>, mut given: Given) -> Result<Value> {
    let mut mapped = Vec::with_capacity(items.len());
    if given.positional.is_empty() {
        let [attribute, default] = given.bind("map", ["attribute", "default"])?;
        let attribute = attribute.ok_or_else(|| Error::render("map requires a filter argument"))?;
        for item in items {
            mapped.push(members::path(&item, &attribute, default.as_ref())?);
        }
    } else {
        let filter = str_of(&given.positional.remove(0))?;
        for item in items {
            let given = Given { positional: given.positional.clone(), named: given.named.clone() };
            mapped.push(apply(interpreter, &filter, item, given)?);
        }
    }
    Value::iterator(mapped)
}
