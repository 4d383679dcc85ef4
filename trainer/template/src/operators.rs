//! Operators of expressions on values.

use std::cmp::Ordering;
use std::rc::Rc;

use crate::ast::{Comparison, Operator};
use crate::error::{Error, Result};
use crate::format::percent;
use crate::text::check_len;
use crate::value::{MAX_ITEMS, Span, Value, indices, resolved};

/// Evaluates `left operator right`.
pub(crate) fn binary(operator: Operator, left: &Value, right: &Value) -> Result<Value> {
    match (left, right) {
        // A text on the left of `%` is a format, which may print an undefined value.
        (Value::Undefined(missing), _) => return Err(missing.error()),
        (_, Value::Undefined(missing)) if !matches!((operator, left), (Operator::Modulo, Value::Str(_))) => {
            return Err(missing.error());
        }
        _ => {}
    }
    let result = match operator {
        Operator::Add => add(left, right)?,
        Operator::Multiply => multiply(left, right)?,
        Operator::Modulo => match left {
            Value::Str(format) => Some(Value::str(percent(format, right)?)),
            _ => numeric(operator, left, right)?,
        },
        _ => numeric(operator, left, right)?,
    };
    result.ok_or_else(|| {
        let (left, right) = (left.kind(), right.kind());
        Error::render(format!("unsupported operand types for {}: '{left}' and '{right}'", symbol(operator)))
    })
}

/// Evaluates `left comparison right`.
pub(crate) fn compare(comparison: Comparison, left: &Value, right: &Value) -> Result<bool> {
    let order = |symbol: &str| left.compare(right, symbol);
    Ok(match comparison {
        Comparison::Equal => left.equals(right),
        Comparison::NotEqual => !left.equals(right),
        Comparison::Less => order("<")? == Some(Ordering::Less),
        Comparison::LessEqual => matches!(order("<=")?, Some(Ordering::Less | Ordering::Equal)),
        Comparison::Greater => order(">")? == Some(Ordering::Greater),
        Comparison::GreaterEqual => matches!(order(">=")?, Some(Ordering::Greater | Ordering::Equal)),
        Comparison::In => right.contains(left)?,
        Comparison::NotIn => !right.contains(left)?,
    })
}

fn symbol(operator: Operator) -> &'static str {
    match operator {
        Operator::Add => "+",
        Operator::Subtract => "-",
        Operator::Multiply => "*",
        Operator::Divide => "/",
        Operator::FloorDivide => "//",
        Operator::Modulo => "%",
        Operator::Power => "**",
    }
}

fn add(left: &Value, right: &Value) -> Result<Option<Value>> {
    let joined = |a: &[Value], b: &[Value]| [a, b].concat();
    Ok(match (left, right) {
        (Value::Str(a), Value::Str(b)) => {
            check_len(a.len() + b.len())?;
            Some(Value::str([&**a, &**b].concat()))
        }
        (Value::List(a), Value::List(b)) => Some(Value::list(joined(&a.values, &b.values))?),
        (Value::Tuple(a), Value::Tuple(b)) => Some(Value::tuple(joined(&a.values, &b.values))?),
        _ => numeric(Operator::Add, left, right)?,
    })
}

fn multiply(left: &Value, right: &Value) -> Result<Option<Value>> {
    let (sequence, count) = match (left, right) {
        (Value::Str(_) | Value::List(_) | Value::Tuple(_), _) => (left, right),
        (_, Value::Str(_) | Value::List(_) | Value::Tuple(_)) => (right, left),
        _ => return numeric(Operator::Multiply, left, right),
    };
    let Some(count) = count.as_int() else { return Ok(None) };
    let count = usize::try_from(count.max(0)).unwrap_or(usize::MAX);
    let repeat = |values: &[Value]| match values.len().checked_mul(count) {
        Some(len) if len <= MAX_ITEMS => Ok(values.iter().cycle().take(len).cloned().collect()),
        _ => Err(Error::budget(format!("the template builds a list of more than {MAX_ITEMS} items"))),
    };
    Ok(Some(match sequence {
        Value::Str(text) => {
            check_len(text.len().saturating_mul(count))?;
            Value::str(text.repeat(count))
        }
        Value::List(items) => Value::list(repeat(&items.values)?)?,
        Value::Tuple(items) => Value::tuple(repeat(&items.values)?)?,
        _ => return Ok(None),
    }))
}

fn numeric(operator: Operator, left: &Value, right: &Value) -> Result<Option<Value>> {
    let by_zero = || Error::render("division by zero");
    if let (Some(a), Some(b)) = (left.as_int(), right.as_int()) {
        let integer = match operator {
            Operator::Add => a.checked_add(b),
            Operator::Subtract => a.checked_sub(b),
            Operator::Multiply => a.checked_mul(b),
            Operator::FloorDivide | Operator::Modulo | Operator::Divide if b == 0 => return Err(by_zero()),
            Operator::FloorDivide => floor_quotient(a, b),
            Operator::Modulo => {
                a.checked_rem(b).map(|rem| if rem != 0 && (rem < 0) != (b < 0) { rem + b } else { rem })
            }
            Operator::Power if b >= 0 => u32::try_from(b).ok().and_then(|b| a.checked_pow(b)),
            Operator::Divide | Operator::Power => return Ok(float(operator, left, right)?.map(Value::Float)),
        };
        let too_large = || Error::budget(format!("the result of {a} {} {b} is too large", symbol(operator)));
        return integer.map(|value| Some(Value::Int(value))).ok_or_else(too_large);
    }
    Ok(float(operator, left, right)?.map(Value::Float))
}

/// Returns the quotient `a // b` of integers, rounded down as in Python.
fn floor_quotient(a: i128, b: i128) -> Option<i128> {
    let (quotient, rem) = (a.checked_div(b)?, a.checked_rem(b)?);
    Some(if rem != 0 && (rem < 0) != (b < 0) { quotient - 1 } else { quotient })
}

fn float(operator: Operator, left: &Value, right: &Value) -> Result<Option<f64>> {
    let (Some(a), Some(b)) = (left.as_float(), right.as_float()) else { return Ok(None) };
    let divides = matches!(operator, Operator::Divide | Operator::FloorDivide | Operator::Modulo);
    if (divides && b == 0.0) || (operator == Operator::Power && a == 0.0 && b < 0.0) {
        return Err(Error::render("division by zero"));
    }
    Ok(Some(match operator {
        Operator::Add => a + b,
        Operator::Subtract => a - b,
        Operator::Multiply => a * b,
        Operator::Divide => a / b,
        Operator::FloorDivide => floor_quotient_of_floats(a, b),
        Operator::Modulo => modulo(a, b),
        Operator::Power if a < 0.0 && b.fract() != 0.0 => {
            return Err(Error::render("a root of a negative number is complex, which is not supported"));
        }
        Operator::Power => a.powf(b),
    }))
}

/// Returns the quotient `a // b` of floats, rounded down. A zero has the sign of `a / b`.
fn floor_quotient_of_floats(a: f64, b: f64) -> f64 {
    let rem = a % b;
    let quotient = (a - rem) / b - f64::from(u8::from(rem != 0.0 && (rem < 0.0) != (b < 0.0)));
    if quotient == 0.0 { 0f64.copysign(a / b) } else { quotient.round() }
}

/// Returns the remainder with the sign of the divisor, as in Python.
fn modulo(a: f64, b: f64) -> f64 {
    let rem = a % b;
    if rem == 0.0 {
        return 0f64.copysign(b);
    }
    if (rem < 0.0) == (b < 0.0) { rem } else { rem + b }
}

/// Evaluates `-value` or `+value`.
pub(crate) fn signed(value: &Value, negative: bool) -> Result<Value> {
    match (value.as_int(), value) {
        (_, Value::Undefined(missing)) => Err(missing.error()),
        (Some(value), _) => {
            let signed = if negative { value.checked_neg() } else { Some(value) };
            signed.map(Value::Int).ok_or_else(|| Error::budget("the integer is too large"))
        }
        (None, Value::Float(value)) => Ok(Value::Float(if negative { -value } else { *value })),
        _ => Err(Error::render(format!("bad operand type for a sign: '{}'", value.kind()))),
    }
}

/// Evaluates the slice `value[start:stop:step]`.
pub(crate) fn slice(value: &Value, bounds: [Value; 3]) -> Result<Value> {
    if let Value::Undefined(missing) = value {
        return Err(missing.error());
    }
    let mut numbers = [None; 3];
    for (number, bound) in numbers.iter_mut().zip(&bounds) {
        *number = match bound {
            Value::None => None,
            _ => Some(bound.as_int().ok_or_else(|| Error::render("slice indices must be integers or None"))?),
        };
    }
    match value {
        Value::Str(text) if numbers[2].unwrap_or(1) == 1 => {
            let len = text.chars().count();
            let range = indices(numbers, len)?;
            let count = range.len();
            let first = range.first().copied().unwrap_or(0);
            Ok(Value::str(text.chars().skip(first).take(count).collect::<String>()))
        }
        Value::Str(text) => {
            let characters: Vec<char> = text.chars().collect();
            let chosen = indices(numbers, characters.len())?;
            Ok(Value::str(chosen.into_iter().map(|at| characters[at]).collect::<String>()))
        }
        Value::List(items) => Value::list(sliced(&items.values, numbers)?),
        Value::Tuple(items) => Value::tuple(sliced(&items.values, numbers)?),
        Value::Range(span) => {
            let [start, stop, step] = resolved(numbers, span.len())?;
            let at = |index: i128| span.start + span.step * index;
            Ok(Value::Range(Rc::new(Span { start: at(start), stop: at(stop), step: span.step * step })))
        }
        _ => Err(Error::render(format!("'{}' object is not subscriptable by a slice", value.kind()))),
    }
}

fn sliced(values: &[Value], numbers: [Option<i128>; 3]) -> Result<Vec<Value>> {
    Ok(indices(numbers, values.len())?.into_iter().map(|at| values[at].clone()).collect())
}
