//! Names of filters and tests that jinja2 does not have, which its compiler refuses.

use crate::ast::{Arguments, Expr, Macro, Node, Statement};
use crate::error::{Error, Result};
use crate::{checks, filters};

/// Refuses an unknown filter or test. As in jinja2, one within an `if` is an error only where it is reached.
///
/// # Errors
/// [`crate::ErrorKind::Syntax`] with the line.
pub(crate) fn refuse(body: &[Statement]) -> Result<()> {
    body.iter().try_for_each(|statement| of_node(&statement.node, statement.line))
}

fn of_node(node: &Node, line: usize) -> Result<()> {
    match node {
        Node::Text(_) | Node::If { .. } | Node::Break | Node::Continue => Ok(()),
        Node::Print(value) | Node::Set { value, .. } => of_expr(value, line),
        Node::SetBlock { value, body, .. } | Node::Filter { value, body } => {
            of_expr(value, line)?;
            refuse(body)
        }
        Node::For(this) => {
            of_expr(&this.items, line)?;
            this.filter.iter().try_for_each(|filter| of_expr(filter, line))?;
            refuse(&this.body)?;
            refuse(&this.otherwise)
        }
        Node::Macro(this) | Node::Generation(this) => of_macro(this, line),
        Node::Call { call, caller } => {
            of_expr(call, line)?;
            of_macro(caller, line)
        }
        Node::With { pairs, body } => {
            pairs.iter().try_for_each(|(_, value)| of_expr(value, line))?;
            refuse(body)
        }
        Node::Block { body, .. } => refuse(body),
    }
}

fn of_macro(this: &Macro, line: usize) -> Result<()> {
    let mut defaults = this.parameters.iter().filter_map(|parameter| parameter.default.as_ref());
    defaults.try_for_each(|default| of_expr(default, line))?;
    refuse(&this.body)
}

fn of_expr(expr: &Expr, line: usize) -> Result<()> {
    let all = |exprs: &[Expr]| exprs.iter().try_for_each(|expr| of_expr(expr, line));
    match expr {
        // As in an `if`, the parts of a conditional expression may never be evaluated.
        Expr::Condition { .. }
        | Expr::None
        | Expr::Bool(_)
        | Expr::Int(_)
        | Expr::Float(_)
        | Expr::Str(_)
        | Expr::Name(_) => Ok(()),
        Expr::List(items) | Expr::Tuple(items) | Expr::Concat(items) => all(items),
        Expr::Dict(entries) => entries.iter().try_for_each(|(key, value)| {
            of_expr(key, line)?;
            of_expr(value, line)
        }),
        Expr::Attribute(of, _) | Expr::Not(of) | Expr::Negative(of) | Expr::Positive(of) => of_expr(of, line),
        Expr::Item(left, right)
        | Expr::And(left, right)
        | Expr::Or(left, right)
        | Expr::Binary(_, left, right) => {
            of_expr(left, line)?;
            of_expr(right, line)
        }
        Expr::Slice(of, bounds) => {
            of_expr(of, line)?;
            bounds.iter().flatten().try_for_each(|bound| of_expr(bound, line))
        }
        Expr::Compare(first, others) => {
            of_expr(first, line)?;
            others.iter().try_for_each(|(_, other)| of_expr(other, line))
        }
        Expr::Call(of, arguments) => {
            of_expr(of, line)?;
            of_arguments(arguments, line)
        }
        Expr::Filter(of, name, arguments) => {
            check("filter", name, filters::exists(name), line)?;
            of_expr(of, line)?;
            of_arguments(arguments, line)
        }
        Expr::Test(of, name, arguments) => {
            check("test", name, checks::exists(name), line)?;
            of_expr(of, line)?;
            of_arguments(arguments, line)
        }
    }
}

fn of_arguments(arguments: &Arguments, line: usize) -> Result<()> {
    let Arguments { positional, named, more, more_named } = arguments;
    let named = named.iter().map(|(_, value)| value);
    let further = more.iter().chain(more_named).map(|value| &**value);
    positional.iter().chain(named).chain(further).try_for_each(|value| of_expr(value, line))
}

fn check(kind: &str, name: &str, exists: bool, line: usize) -> Result<()> {
    if exists { Ok(()) } else { Err(Error::syntax(line, format!("No {kind} named '{name}'."))) }
}
