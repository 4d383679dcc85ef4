//! Filters of lists and dictionaries.

use std::cmp::Ordering;

use super::needed;
use crate::ast::Operator;
use crate::error::{Error, Result};
use crate::given::Given;
use crate::interpreter::{Interpreter, members};
use crate::operators;
use crate::text::{check_len, push_str, str_of};
use crate::value::{Missing, Value, check_key};

/// Result of `first` or `last` for an empty sequence.
const EMPTY: Missing = Missing::Result("No item, sequence was empty.");

pub(super) fn apply(
    interpreter: &mut Interpreter<'_>,
    name: &str,
    value: &Value,
    given: Given,
) -> Result<Value> {
    match name {
        "length" | "count" => {
            let [] = given.bind(name, [])?;
            Ok(Value::Int(i128::try_from(value.len()?).unwrap_or(i128::MAX)))
        }
        "items" => items(name, value, given),
        "attr" => attr(name, value, given),
        "reverse" => {
            let [] = given.bind(name, [])?;
            if let Value::Str(text) = value {
                return Ok(Value::str(text.chars().rev().collect::<String>()));
            }
            let mut items = value.iterate()?;
            items.reverse();
            // Python cannot reverse a generator, so jinja2 makes a list of it.
            if matches!(value, Value::Iterator(_)) { Value::list(items) } else { Value::iterator(items) }
        }
        "first" | "last" if matches!(value, Value::List(_) | Value::Tuple(_)) => {
            let [] = given.bind(name, [])?;
            let (Value::List(items) | Value::Tuple(items)) = value else { return Ok(value.clone()) };
            let item = if name == "first" { items.values.first() } else { items.values.last() };
            Ok(item.cloned().unwrap_or(Value::Undefined(EMPTY)))
        }
        "last" if matches!(value, Value::Iterator(_)) => {
            Err(Error::render("'generator' object is not reversible"))
        }
        _ => {
            let items = value.iterate()?;
            let each = 1 + value.size() / items.len().max(1);
            let comparisons = match name {
                // Each item is compared with all before it.
                "unique" => items.len().saturating_mul(items.len()).saturating_mul(each) / 4,
                // The logarithm of the number of items, which is below 2^22, is the number of passes.
                "sort" | "dictsort" | "groupby" => value.size().saturating_mul(22),
                _ => 0,
            };
            interpreter.charge(items.len() + comparisons)?;
            of_items(name, value, items, given)
        }
    }
}

/// Returns the pairs of a mapping, as `value | items` does.
fn items(name: &str, value: &Value, given: Given) -> Result<Value> {
    let [] = given.bind(name, [])?;
    match value {
        Value::Undefined(_) => Value::iterator(Vec::new()),
        Value::Dict(_) => {
            let items = crate::methods::call(value, "items", Given::default())?;
            Value::iterator(items.iterate()?)
        }
        _ => Err(Error::render("Can only get item pairs from a mapping.")),
    }
}

/// Returns an attribute of a value, as `value | attr(name)` does.
fn attr(name: &str, value: &Value, given: Given) -> Result<Value> {
    let [attribute] = given.bind(name, ["name"])?;
    let attribute = str_of(&needed(name, attribute)?)?;
    match value {
        // Only attributes are looked up, and not the items of a dictionary.
        Value::Dict(_) if !crate::methods::exists(value, &attribute) => {
            Ok(Value::Undefined(Missing::Member(value.kind(), attribute.into())))
        }
        _ => members::attribute(value, &attribute.into()),
    }
}

fn of_items(name: &str, value: &Value, mut items: Vec<Value>, given: Given) -> Result<Value> {
    match name {
        "list" => {
            let [] = given.bind(name, [])?;
            Value::list(items)
        }
        "first" | "last" => {
            let [] = given.bind(name, [])?;
            let item = if name == "first" { items.into_iter().next() } else { items.pop() };
            Ok(item.unwrap_or(Value::Undefined(EMPTY)))
        }
        "join" => join(&items, given),
        "sum" => {
            let [attribute, start] = given.bind(name, ["attribute", "start"])?;
            let mut sum = start.unwrap_or(Value::Int(0));
            if matches!(sum, Value::Str(_)) {
                return Err(Error::render("sum() can't sum strings"));
            }
            for item in keyed(&items, attribute.as_ref())? {
                sum = operators::binary(Operator::Add, &sum, &item)?;
            }
            Ok(sum)
        }
        "min" | "max" => {
            let [case_sensitive, attribute] = given.bind(name, ["case_sensitive", "attribute"])?;
            let keys = sort_keys(&items, attribute.as_ref(), case_sensitive)?;
            let wanted = if name == "min" { Ordering::Less } else { Ordering::Greater };
            let mut best: Option<usize> = None;
            for at in 0..items.len() {
                let is_better = match best {
                    Some(best) => keys[at].compare(&keys[best], "<")? == Some(wanted),
                    None => true,
                };
                best = if is_better { Some(at) } else { best };
            }
            let missing = Value::Undefined(Missing::Result("No aggregated item, sequence was empty."));
            Ok(best.map_or(missing, |best| items[best].clone()))
        }
        "sort" => {
            let [reverse, case_sensitive, attribute] =
                given.bind(name, ["reverse", "case_sensitive", "attribute"])?;
            let keys = sort_keys(&items, attribute.as_ref(), case_sensitive)?;
            // jinja2 sorts by lists of attributes. Python compares only unequal items of lists, so `None` may
            // occur repeatedly.
            let keys: Vec<Value> =
                keys.into_iter().map(|key| Value::list(vec![key])).collect::<Result<_>>()?;
            Value::list(sorted(items, &keys, reverse.is_some_and(|reverse| reverse.is_true()))?)
        }
        "unique" => {
            let [case_sensitive, attribute] = given.bind(name, ["case_sensitive", "attribute"])?;
            let keys = sort_keys(&items, attribute.as_ref(), case_sensitive)?;
            keys.iter().try_for_each(check_key)?;
            let is_first = |at: &usize| !keys[..*at].iter().any(|key| key.equals(&keys[*at]));
            Value::iterator((0..items.len()).filter(is_first).map(|at| items[at].clone()).collect())
        }
        "dictsort" => dict_sort(value, given),
        "groupby" => group_by(items, given),
        "batch" => batch(items, given),
        _ => slice(items, given),
    }
}

/// Returns the items, or an attribute of each.
fn keyed(items: &[Value], attribute: Option<&Value>) -> Result<Vec<Value>> {
    match attribute {
        None | Some(Value::None) => Ok(items.to_vec()),
        Some(path) => items.iter().map(|item| members::path(item, path, None)).collect(),
    }
}

/// Returns the keys by which items are sorted: texts in lower case unless `case_sensitive` is set.
fn sort_keys(
    items: &[Value],
    attribute: Option<&Value>,
    case_sensitive: Option<Value>,
) -> Result<Vec<Value>> {
    let sensitive = case_sensitive.is_some_and(|sensitive| sensitive.is_true());
    let fold = |value: Value| match value {
        Value::Str(text) if !sensitive => Value::str(text.to_lowercase()),
        other => other,
    };
    match attribute {
        // Several attributes with commas between them.
        Some(Value::Str(paths)) if paths.contains(',') => {
            let paths: Vec<Value> = paths.split(',').map(Value::str).collect();
            let key = |item: &Value| {
                let parts = paths.iter().map(|path| members::path(item, path, None).map(fold));
                Value::tuple(parts.collect::<Result<_>>()?)
            };
            items.iter().map(key).collect()
        }
        _ => Ok(keyed(items, attribute)?.into_iter().map(fold).collect()),
    }
}

/// Sorts items by their keys; items with equal keys keep their order.
fn sorted(items: Vec<Value>, keys: &[Value], reverse: bool) -> Result<Vec<Value>> {
    let order = crate::order::sorted(keys, reverse)?;
    Ok(order.into_iter().map(|at| items[at].clone()).collect())
}

fn join(items: &[Value], given: Given) -> Result<Value> {
    let [separator, attribute] = given.bind("join", ["d", "attribute"])?;
    let separator = separator.map_or(Ok(String::new()), |separator| str_of(&separator))?;
    let mut out = String::new();
    for (index, item) in keyed(items, attribute.as_ref())?.iter().enumerate() {
        if index > 0 {
            out.push_str(&separator);
        }
        push_str(&mut out, item)?;
        check_len(out.len())?;
    }
    Ok(Value::str(out))
}

fn dict_sort(value: &Value, given: Given) -> Result<Value> {
    let [case_sensitive, by, reverse] = given.bind("dictsort", ["case_sensitive", "by", "reverse"])?;
    let Value::Dict(dict) = value else {
        return Err(Error::render(format!("'{}' object has no attribute 'items'", value.kind())));
    };
    let column = match by.as_ref().map(|by| by.as_str()) {
        None | Some(Some("key")) => 0,
        Some(Some("value")) => 1,
        _ => return Err(Error::render("You can only sort by either \"key\" or \"value\"")),
    };
    let pairs = dict.iter().map(|(key, value)| Value::tuple(vec![key.clone(), value.clone()]));
    let pairs: Vec<Value> = pairs.collect::<Result<_>>()?;
    let keys = sort_keys(&pairs, Some(&Value::Int(column)), case_sensitive)?;
    Value::list(sorted(pairs, &keys, reverse.is_some_and(|reverse| reverse.is_true()))?)
}

fn group_by(items: Vec<Value>, given: Given) -> Result<Value> {
    let [attribute, default, case_sensitive] =
        given.bind("groupby", ["attribute", "default", "case_sensitive"])?;
    let attribute = needed("groupby", attribute)?;
    let mut pairs = Vec::with_capacity(items.len());
    for item in items {
        pairs.push(Value::tuple(vec![members::path(&item, &attribute, default.as_ref())?, item])?);
    }
    let keys = sort_keys(&pairs, Some(&Value::Int(0)), case_sensitive.clone())?;
    let pairs = sorted(pairs, &keys, false)?;
    let keys = sort_keys(&pairs, Some(&Value::Int(0)), case_sensitive)?;
    let mut groups = Vec::new();
    let mut at = 0;
    while at < pairs.len() {
        let end = (at..pairs.len()).find(|next| !keys[*next].equals(&keys[at])).unwrap_or(pairs.len());
        let group = pairs[at..end].iter().map(|pair| members::item(pair, &Value::Int(1)));
        let group = Value::list(group.collect::<Result<_>>()?)?;
        groups.push(Value::tuple(vec![members::item(&pairs[at], &Value::Int(0))?, group])?);
        at = end;
    }
    Value::list(groups)
}

fn count_of(name: &str, value: Option<Value>) -> Result<usize> {
    let count = needed(name, value)?.as_int().and_then(|count| usize::try_from(count).ok());
    count
        .filter(|count| (1..=100_000).contains(count))
        .ok_or_else(|| Error::render(format!("{name} takes a count")))
}

fn batch(items: Vec<Value>, given: Given) -> Result<Value> {
    let [count, fill] = given.bind("batch", ["linecount", "fill_with"])?;
    let count = count_of("batch", count)?;
    let mut rows = Vec::new();
    for row in items.chunks(count) {
        let mut row = row.to_vec();
        if let Some(fill) = fill.as_ref().filter(|fill| !matches!(fill, Value::None)) {
            row.resize(count, fill.clone());
        }
        rows.push(Value::list(row)?);
    }
    Value::iterator(rows)
}

fn slice(items: Vec<Value>, given: Given) -> Result<Value> {
    let [count, fill] = given.bind("slice", ["slices", "fill_with"])?;
    let count = count_of("slice", count)?;
    let (width, longer) = (items.len() / count, items.len() % count);
    let mut rest = items.into_iter();
    let mut columns = Vec::new();
    for column in 0..count {
        let mut values: Vec<Value> = rest.by_ref().take(width + usize::from(column < longer)).collect();
        if let Some(fill) = fill.as_ref().filter(|fill| !matches!(fill, Value::None))
            && column >= longer
        {
            values.push(fill.clone());
        }
        columns.push(Value::list(values)?);
    }
    Value::iterator(columns)
}
