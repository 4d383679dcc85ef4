//! Methods of strings, lists, dictionaries, loops and functions.

mod names;
mod string;

use std::rc::Rc;

pub(crate) use names::exists;
pub(crate) use string::{is_lower, is_upper, replace, split_lines};

use crate::error::{Error, Result};
use crate::given::Given;
use crate::value::{Callable, Loop, Missing, Value, resolved};

/// Calls the method in `value.name(given)`.
pub(crate) fn call(value: &Value, name: &str, given: Given) -> Result<Value> {
    match value {
        Value::Str(text) => string::call(text, name, given),
        Value::List(_) | Value::Tuple(_) | Value::Range(_) => sequence(value, name, given),
        Value::Dict(_) => dict(value, name, given),
        Value::Loop(this) => of_loop(this, name, given),
        Value::Callable(callable) => cycler(callable, name),
        Value::Float(float) => Ok(Value::Bool(float.fract() == 0.0)),
        _ => {
            let bits = value.as_int().map_or(0, |value| 128 - value.unsigned_abs().leading_zeros());
            Ok(Value::Int(bits.into()))
        }
    }
}

fn sequence(value: &Value, name: &str, given: Given) -> Result<Value> {
    let values = value.iterate()?;
    if name == "copy" {
        return Value::list(values);
    }
    let [item, start, stop] = given.bind(name, ["value", "start", "stop"])?;
    let item = item.ok_or_else(|| Error::render(format!("{name}() takes exactly one argument")))?;
    let has_bounds = start.is_some() || stop.is_some();
    if has_bounds && (name == "count" || matches!(value, Value::Range(_))) {
        return Err(Error::render(format!("{name}() takes exactly one argument")));
    }
    let bounds = [start, stop].map(|bound| bound.and_then(|bound| bound.as_int()));
    let [start, stop, _] = resolved([bounds[0], bounds[1], None], values.len())?;
    let within = (0i128..).zip(&values).filter(|(at, _)| (start..stop).contains(at));
    let mut found = within.filter(|(_, value)| value.equals(&item));
    if name == "count" {
        return Ok(Value::Int(i128::try_from(found.count()).unwrap_or(i128::MAX)));
    }
    let at = found.next().map(|(at, _)| Value::Int(at));
    at.ok_or_else(|| Error::render("the value is not in the list"))
}

fn dict(value: &Value, name: &str, given: Given) -> Result<Value> {
    let Value::Dict(entries) = value else { return Err(Error::render("expected a dictionary")) };
    if name == "get" {
        let [key, default] = given.bind(name, ["key", "default"])?;
        let key = key.ok_or_else(|| Error::render("get expected at least 1 argument, got 0"))?;
        crate::value::check_key(&key)?;
        return Ok(entries.get(&key).cloned().or(default).unwrap_or(Value::None));
    }
    let [] = given.bind(name, [])?;
    match name {
        "keys" => Value::view("dict_keys", entries.iter().map(|(key, _)| key.clone()).collect()),
        "values" => Value::view("dict_values", entries.iter().map(|(_, value)| value.clone()).collect()),
        "items" => {
            let pairs = entries.iter().map(|(key, value)| Value::tuple(vec![key.clone(), value.clone()]));
            Value::view("dict_items", pairs.collect::<Result<_>>()?)
        }
        _ => Ok(value.clone()),
    }
}

fn of_loop(this: &Rc<Loop>, name: &str, given: Given) -> Result<Value> {
    let values = given.positional;
    if name == "cycle" {
        if values.is_empty() {
            return Err(Error::render("no items for cycling given"));
        }
        return Ok(values[this.index() % values.len()].clone());
    }
    let mut seen = this.changed.borrow_mut();
    let same = seen
        .as_ref()
        .is_some_and(|seen| seen.len() == values.len() && seen.iter().zip(&values).all(|(a, b)| a.equals(b)));
    *seen = Some(values);
    Ok(Value::Bool(!same))
}

fn cycler(callable: &Callable, name: &str) -> Result<Value> {
    let Callable::Cycler(items, position) = callable else {
        return Err(Error::render(format!("the function has no method '{name}'")));
    };
    if name == "reset" {
        position.set(0);
        return Ok(Value::None);
    }
    let item = items.values.get(position.get()).cloned();
    position.set((position.get() + 1) % items.values.len());
    Ok(item.unwrap_or(Value::Undefined(Missing::Result("the cycler is empty"))))
}
