//! Expressions: their values.

use super::markup::escape;
use super::{Interpreter, members};
use crate::ast::{Arguments, Comparison, Expr, Operator};
use crate::error::{Error, Result};
use crate::given::Given;
use crate::operators;
use crate::text::check_len;
use crate::value::{Dict, Missing, Scope, Value};
use crate::{checks, filters, methods};

impl Interpreter<'_> {
    pub(super) fn evaluate(&mut self, expr: &Expr, scope: &Scope) -> Result<Value> {
        self.charge(1)?;
        match expr {
            Expr::None => Ok(Value::None),
            Expr::Bool(value) => Ok(Value::Bool(*value)),
            Expr::Int(value) => Ok(Value::Int(*value)),
            Expr::Float(value) => Ok(Value::Float(*value)),
            Expr::Str(text) => Ok(Value::Str(text.clone())),
            Expr::Name(name) => {
                let found = scope.get(name).or_else(|| Self::global(name));
                Ok(found.unwrap_or_else(|| Self::missing(name)))
            }
            _ => self.nested(|this| this.compound(expr, scope)),
        }
    }

    fn compound(&mut self, expr: &Expr, scope: &Scope) -> Result<Value> {
        match expr {
            Expr::List(items) => Value::list(self.evaluate_all(items, scope)?),
            Expr::Tuple(items) => Value::tuple(self.evaluate_all(items, scope)?),
            Expr::Dict(entries) => self.dict(entries, scope),
            Expr::Attribute(of, name) => {
                let of = self.evaluate(of, scope)?;
                members::attribute(&of, name)
            }
            Expr::Item(of, key) => {
                let of = self.evaluate(of, scope)?;
                let key = self.evaluate(key, scope)?;
                // An index into a list and a text key take constant time; texts and other keys are searched
                // linearly.
                let is_searched = matches!((&of, &key), (Value::Str(_), _) | (Value::Dict(_), _));
                if is_searched && !matches!((&of, &key), (Value::Dict(_), Value::Str(_))) {
                    self.charge(of.steps())?;
                }
                members::item(&of, &key)
            }
            Expr::Slice(of, bounds) => self.slice(of, bounds, scope),
            Expr::Call(..) => self.call_with(expr, scope, None),
            Expr::Filter(of, name, arguments) => {
                let of = self.evaluate(of, scope)?;
                let given = self.given(arguments, scope)?;
                filters::apply(self, name, of, given)
            }
            Expr::Test(of, name, arguments) => {
                let of = self.evaluate(of, scope)?;
                let given = self.given(arguments, scope)?;
                self.check(name, &of, given).map(Value::Bool)
            }
            Expr::Negative(of) => operators::signed(&self.evaluate(of, scope)?, true),
            Expr::Positive(of) => operators::signed(&self.evaluate(of, scope)?, false),
            Expr::Binary(operator, left, right) => {
                let left = self.evaluate(left, scope)?;
                let right = self.evaluate(right, scope)?;
                // A text on the left may be a format.
                if left.as_str().is_some() {
                    self.charge(left.size().saturating_add(right.size()))?;
                }
                let result = match self.joined_escaped(*operator, &left, &right)? {
                    Some(joined) => joined,
                    None => operators::binary(*operator, &left, &right)?,
                };
                self.charge(result.steps())?;
                Ok(result)
            }
            Expr::Concat(parts) => {
                let mut text = String::new();
                for part in parts {
                    let part = self.evaluate(part, scope)?;
                    self.print(&part, &mut text)?;
                }
                let text = Value::str(text);
                self.charge(text.steps())?;
                Ok(text)
            }
            _ => self.logic(expr, scope),
        }
    }

    /// Joins two texts if one of them is escaped; the other one is escaped first.
    fn joined_escaped(&mut self, operator: Operator, left: &Value, right: &Value) -> Result<Option<Value>> {
        let (Operator::Add, Value::Str(first), Value::Str(second)) = (operator, left, right) else {
            return Ok(None);
        };
        let [is_first, is_second] = [self.is_escaped(left), self.is_escaped(right)];
        if !is_first && !is_second {
            return Ok(None);
        }
        let text = |text: &str, is_escaped: bool| if is_escaped { text.to_owned() } else { escape(text) };
        let joined = text(first, is_first) + &text(second, is_second);
        check_len(joined.len())?;
        let joined = Value::str(joined);
        self.mark_escaped(&joined);
        Ok(Some(joined))
    }

    fn logic(&mut self, expr: &Expr, scope: &Scope) -> Result<Value> {
        match expr {
            Expr::Not(of) => Ok(Value::Bool(!self.evaluate(of, scope)?.is_true())),
            Expr::And(left, right) => {
                let left = self.evaluate(left, scope)?;
                if left.is_true() { self.evaluate(right, scope) } else { Ok(left) }
            }
            Expr::Or(left, right) => {
                let left = self.evaluate(left, scope)?;
                if left.is_true() { Ok(left) } else { self.evaluate(right, scope) }
            }
            Expr::Compare(first, others) => self.comparison(first, others, scope),
            Expr::Condition { test, then, otherwise } => {
                if self.evaluate(test, scope)?.is_true() {
                    return self.evaluate(then, scope);
                }
                match otherwise {
                    Some(otherwise) => self.evaluate(otherwise, scope),
                    None => Ok(Value::Undefined(Missing::Result(
                        "the inline if-expression evaluated to false and no else section was defined",
                    ))),
                }
            }
            // The caller handles all others.
            _ => Err(Error::render("unsupported expression")),
        }
    }

    /// Evaluates `value is name(given)`, and charges for what it reads.
    pub(crate) fn check(&mut self, name: &str, value: &Value, given: Given) -> Result<bool> {
        if name == "escaped" {
            let [] = given.bind(name, [])?;
            return Ok(self.is_escaped(value));
        }
        let steps = match (checks::comparison(name), given.positional.first()) {
            (Some(comparison), Some(other)) => value.comparison_steps(comparison, other),
            _ if matches!(name, "lower" | "upper" | "sameas" | "divisibleby") => value.size(),
            _ => 0,
        };
        self.charge(steps)?;
        checks::check(name, value, given)
    }

    fn evaluate_all(&mut self, exprs: &[Expr], scope: &Scope) -> Result<Vec<Value>> {
        exprs.iter().map(|expr| self.evaluate(expr, scope)).collect()
    }

    fn dict(&mut self, entries: &[(Expr, Expr)], scope: &Scope) -> Result<Value> {
        let mut dict = Dict::default();
        for (key, value) in entries {
            dict.insert(self.evaluate(key, scope)?, self.evaluate(value, scope)?)?;
        }
        self.charge(dict.insertion_steps())?;
        Value::dict(dict)
    }

    fn slice(&mut self, of: &Expr, bounds: &[Option<Expr>; 3], scope: &Scope) -> Result<Value> {
        let of = self.evaluate(of, scope)?;
        let mut values = [Value::None, Value::None, Value::None];
        for (value, bound) in values.iter_mut().zip(bounds) {
            if let Some(bound) = bound {
                *value = self.evaluate(bound, scope)?;
            }
        }
        self.charge(of.steps())?;
        operators::slice(&of, values)
    }

    fn comparison(&mut self, first: &Expr, others: &[(Comparison, Expr)], scope: &Scope) -> Result<Value> {
        let mut left = self.evaluate(first, scope)?;
        for (comparison, right) in others {
            let right = self.evaluate(right, scope)?;
            self.charge(left.comparison_steps(*comparison, &right))?;
            if !operators::compare(*comparison, &left, &right)? {
                return Ok(Value::Bool(false));
            }
            left = right;
        }
        Ok(Value::Bool(true))
    }

    /// Evaluates a call. A method is called directly, without creating a value for the bound method.
    pub(super) fn call_with(&mut self, expr: &Expr, scope: &Scope, caller: Option<Value>) -> Result<Value> {
        let Expr::Call(callee, arguments) = expr else { return Err(Error::render("expected a call")) };
        if let Expr::Attribute(of, name) = &**callee {
            let of = self.evaluate(of, scope)?;
            let given = self.given(arguments, scope)?;
            if methods::exists(&of, name) {
                return self.call_method(&of, name, given);
            }
            let callee = members::attribute(&of, name)?;
            return self.call(&callee, given.with_caller(caller));
        }
        let callee = self.evaluate(callee, scope)?;
        let given = self.given(arguments, scope)?;
        self.call(&callee, given.with_caller(caller))
    }

    fn given(&mut self, arguments: &Arguments, scope: &Scope) -> Result<Given> {
        let mut given =
            Given { positional: self.evaluate_all(&arguments.positional, scope)?, named: Vec::new() };
        for (name, value) in &arguments.named {
            given.named.push((name.clone(), self.evaluate(value, scope)?));
        }
        if let Some(more) = &arguments.more {
            given.positional.extend(self.evaluate(more, scope)?.iterate()?);
        }
        if let Some(more) = &arguments.more_named {
            let Value::Dict(more) = self.evaluate(more, scope)? else {
                return Err(Error::render("argument after ** must be a mapping"));
            };
            for (key, value) in more.iter() {
                let Value::Str(name) = key else { return Err(Error::render("keywords must be strings")) };
                given.named.push((name.clone(), value.clone()));
            }
        }
        Ok(given)
    }
}
