//! Tests of values: `value is name`.

use std::rc::Rc;

use crate::ast::Comparison;
use crate::error::{Error, Result};
use crate::given::Given;
use crate::methods::{is_lower, is_upper};
use crate::operators;
use crate::text::str_of;
use crate::value::{Callable, Value, check_key};

/// Tests without an argument, and those with one that are no comparisons.
const NAMES: [&str; 23] = [
    "boolean",
    "callable",
    "defined",
    "divisibleby",
    "escaped",
    "even",
    "false",
    "filter",
    "float",
    "integer",
    "iterable",
    "lower",
    "mapping",
    "none",
    "number",
    "odd",
    "sameas",
    "sequence",
    "string",
    "test",
    "true",
    "undefined",
    "upper",
];

/// Whether there is a test of this name.
pub(crate) fn exists(name: &str) -> bool {
    NAMES.contains(&name) || comparison(name).is_some()
}

/// Returns the comparison operator that a test such as `eq` stands for; `None` for all other tests.
pub(crate) fn comparison(name: &str) -> Option<Comparison> {
    Some(match name {
        "eq" | "equalto" | "==" => Comparison::Equal,
        "ne" | "!=" => Comparison::NotEqual,
        "lt" | "lessthan" | "<" => Comparison::Less,
        "le" | "<=" => Comparison::LessEqual,
        "gt" | "greaterthan" | ">" => Comparison::Greater,
        "ge" | ">=" => Comparison::GreaterEqual,
        "in" => Comparison::In,
        _ => return None,
    })
}

/// Evaluates the test `value is name(given)`.
pub(crate) fn check(name: &str, value: &Value, given: Given) -> Result<bool> {
    if let Some(comparison) = comparison(name) {
        let [other] = given.bind(name, ["other"])?;
        return operators::compare(comparison, value, &needed(name, other)?);
    }
    match name {
        "sameas" => {
            let [other] = given.bind(name, ["other"])?;
            return Ok(is_same(value, &needed(name, other)?));
        }
        "divisibleby" => {
            let [divisor] = given.bind(name, ["num"])?;
            return Ok(
                !operators::binary(crate::ast::Operator::Modulo, value, &needed(name, divisor)?)?.is_true()
            );
        }
        "filter" | "test" => {
            let [] = given.bind(name, [])?;
            check_key(value)?;
            let is_known = if name == "filter" { crate::filters::exists } else { exists };
            return Ok(value.as_str().is_some_and(is_known));
        }
        _ => {}
    }
    let [] = given.bind(name, [])?;
    unary(name, value)
}

fn needed(name: &str, value: Option<Value>) -> Result<Value> {
    value.ok_or_else(|| Error::render(format!("the test '{name}' needs an argument")))
}

fn unary(name: &str, value: &Value) -> Result<bool> {
    Ok(match name {
        "defined" => !matches!(value, Value::Undefined(_)),
        "undefined" => matches!(value, Value::Undefined(_)),
        "none" => matches!(value, Value::None),
        "boolean" => matches!(value, Value::Bool(_)),
        "true" => matches!(value, Value::Bool(true)),
        "false" => matches!(value, Value::Bool(false)),
        "integer" => matches!(value, Value::Int(_)),
        "float" => matches!(value, Value::Float(_)),
        "number" => value.as_float().is_some(),
        "string" => matches!(value, Value::Str(_)),
        "mapping" => matches!(value, Value::Dict(_)),
        "iterable" => value.is_iterable(),
        "sequence" => matches!(
            value,
            Value::Undefined(_)
                | Value::Str(_)
                | Value::List(_)
                | Value::Tuple(_)
                | Value::Dict(_)
                | Value::Range(_)
        ),
        "callable" => match value {
            Value::Callable(callable) => !matches!(**callable, Callable::Cycler(..)),
            _ => matches!(value, Value::Loop(_) | Value::Undefined(_)),
        },
        "lower" => is_lower(&str_of(value)?),
        "upper" => is_upper(&str_of(value)?),
        "odd" | "even" => {
            let rem = operators::binary(crate::ast::Operator::Modulo, value, &Value::Int(2))?;
            rem.equals(&Value::Int(i128::from(name == "odd")))
        }
        _ => return Err(Error::render(format!("No test named '{name}'."))),
    })
}

/// Evaluates Python's `a is b`: whether both are the same object. Equal small values count as one object, as
/// they mostly are in Python.
fn is_same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => Rc::ptr_eq(a, b),
        (Value::Dict(a), Value::Dict(b)) => Rc::ptr_eq(a, b),
        (Value::Undefined(_), Value::Undefined(_)) => false,
        _ => std::mem::discriminant(a) == std::mem::discriminant(b) && a.equals(b),
    }
}
