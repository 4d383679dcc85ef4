//! Attributes and items of values, as jinja2's sandbox finds them.

use std::rc::Rc;
use std::sync::Arc;

use crate::ast::Macro;
use crate::error::Result;
use crate::methods::exists;
use crate::text::str_of;
use crate::value::{Callable, Loop, Missing, Value};

/// Evaluates `value.name`: an attribute if there is one, else an item.
pub(crate) fn attribute(value: &Value, name: &Arc<str>) -> Result<Value> {
    if let Value::Undefined(missing) = value {
        // Python objects have a class, which the sandbox hides.
        return if &**name == "__class__" { Ok(value.clone()) } else { Err(missing.error()) };
    }
    if let Some(found) = own_attribute(value, name) {
        return Ok(found);
    }
    if let Value::Dict(dict) = value
        && let Some(found) = dict.get_text(name)
    {
        return Ok(found.clone());
    }
    Ok(Value::Undefined(Missing::Member(value.kind(), name.clone())))
}

/// Evaluates `value[key]`: an item if there is one, else an attribute.
pub(crate) fn item(value: &Value, key: &Value) -> Result<Value> {
    if let Value::Undefined(missing) = value {
        return Err(missing.error());
    }
    if let Some(found) = own_item(value, key) {
        return Ok(found);
    }
    if let Value::Str(name) = key
        && let Some(found) = own_attribute(value, name)
    {
        return Ok(found);
    }
    Ok(Value::Undefined(Missing::Member(value.kind(), str_of(key)?.into())))
}

/// Looks up a dotted path such as `a.0.b` in a value, as filters look up attributes.
pub(crate) fn path(value: &Value, path: &Value, default: Option<&Value>) -> Result<Value> {
    let keys = match path {
        Value::Str(path) => path.split('.').map(path_key).collect(),
        other => vec![other.clone()],
    };
    let mut value = value.clone();
    for key in keys {
        value = item(&value, &key)?;
        if let (Value::Undefined(_), Some(default)) = (&value, default) {
            value = default.clone();
        }
    }
    Ok(value)
}

fn path_key(part: &str) -> Value {
    let index = part.parse().ok().filter(|_| part.bytes().all(|byte| byte.is_ascii_digit()));
    index.map_or_else(|| Value::str(part), Value::Int)
}

fn own_item(value: &Value, key: &Value) -> Option<Value> {
    let at = |len: usize| {
        let index = key.as_int()?;
        let len = i128::try_from(len).ok()?;
        usize::try_from(if index < 0 { index + len } else { index }).ok()
    };
    match value {
        Value::Dict(dict) => dict.get(key).cloned(),
        Value::List(items) | Value::Tuple(items) => items.values.get(at(items.values.len())?).cloned(),
        Value::Str(text) => {
            let character = text.chars().nth(at(text.chars().count())?)?;
            Some(Value::str(&*character.encode_utf8(&mut [0; 4])))
        }
        Value::Range(span) => {
            let index = at(span.len()).filter(|index| *index < span.len())?;
            Some(Value::Int(span.start + span.step * i128::try_from(index).ok()?))
        }
        _ => None,
    }
}

fn own_attribute(value: &Value, name: &Arc<str>) -> Option<Value> {
    if exists(value, name) {
        return Some(Value::Callable(Rc::new(Callable::Method(value.clone(), name.clone()))));
    }
    match value {
        Value::Namespace(attributes) => attributes.borrow().get_text(name).cloned(),
        Value::Loop(this) => loop_attribute(this, name),
        // A pair that `groupby` returns, whose items have names.
        Value::Tuple(items) if items.values.len() == 2 => match &**name {
            "grouper" => items.values.first().cloned(),
            "list" => items.values.last().cloned(),
            _ => None,
        },
        Value::Callable(callable) => match (&**callable, &**name) {
            (Callable::Macro(definition, _), _) => macro_attribute(definition, name),
            (Callable::Cycler(items, position), "current") => items.values.get(position.get()).cloned(),
            _ => None,
        },
        _ => None,
    }
}

fn macro_attribute(definition: &Macro, name: &str) -> Option<Value> {
    let [reads_varargs, reads_kwargs, reads_caller] = definition.reads;
    match name {
        "name" => Some(Value::Str(definition.name.clone())),
        "arguments" => {
            let names = definition.parameters.iter().map(|parameter| Value::Str(parameter.name.clone()));
            Value::tuple(names.collect()).ok()
        }
        "catch_varargs" => Some(Value::Bool(reads_varargs)),
        "catch_kwargs" => Some(Value::Bool(reads_kwargs)),
        "caller" => Some(Value::Bool(reads_caller)),
        _ => None,
    }
}

fn loop_attribute(this: &Rc<Loop>, name: &Arc<str>) -> Option<Value> {
    let int = |value: usize| i128::try_from(value).ok().map(Value::Int);
    let (index, len) = (this.index(), this.len());
    match &**name {
        "index" => int(index + 1),
        "index0" => int(index),
        "revindex" => int(len - index),
        "revindex0" => int(len - index - 1),
        "first" => Some(Value::Bool(index == 0)),
        "last" => Some(Value::Bool(index + 1 == len)),
        "length" => int(len),
        "depth" => int(this.depth + 1),
        "depth0" => int(this.depth),
        "previtem" => {
            let item = index.checked_sub(1).and_then(|index| this.item(index)).cloned();
            Some(item.unwrap_or(Value::Undefined(Missing::Result("there is no previous item"))))
        }
        "nextitem" => {
            let item = this.item(index + 1).cloned();
            Some(item.unwrap_or(Value::Undefined(Missing::Result("there is no next item"))))
        }
        _ => None,
    }
}
