//! Statements: a template's body becomes text.

mod calls;
mod evaluation;
pub(crate) mod markup;
pub(crate) mod members;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use self::markup::Escaped;
use crate::ast::{Body, CAPTURED, Expr, For, Macro, Node, Statement, Target};
use crate::error::{Error, Result};
use crate::rendered::{Clock, Rendered};
use crate::text::{check_len, push_str};
use crate::value::{BYTES_A_STEP, Callable, Dict, Loop, Missing, Scope, Value};

/// Number of steps that one iteration of a loop takes besides those of its body.
const STEPS_A_TURN: usize = 4;
/// Maximum depth of nested blocks, calls and expressions while a template runs.
const MAX_DEPTH: usize = 250;
/// Maximum number of namespaces that one rendering may assign to attributes of namespaces.
const MAX_SHARED: usize = 1000;

/// Settings of a rendering.
#[derive(Clone, Copy)]
pub(crate) struct Settings<'a> {
    pub(crate) clock: Clock<'a>,
    pub(crate) max_steps: usize,
    /// Whether printing an undefined value is an error.
    pub(crate) is_strict: bool,
}

/// Renders the template `body` with `variables`, which it reads as globals.
pub(crate) fn render(
    body: &Body,
    variables: &serde_json::Map<String, serde_json::Value>,
    settings: &Settings<'_>,
) -> Result<Rendered> {
    let root = Scope::default();
    for (name, value) in variables {
        root.set(name.as_str().into(), Value::from_json(value)?);
    }
    let mut interpreter = Interpreter {
        settings: *settings,
        root: root.clone(),
        fuel: settings.max_steps,
        depth: 0,
        captures: 0,
        shared: 0,
        generated: Vec::new(),
        escaped: Escaped::default(),
        closures: Vec::new(),
        namespaces: Vec::new(),
    };
    let mut text = String::new();
    let run = interpreter.body(body, &root, &mut text);
    // A macro and the scope that it is set in hold each other, so clearing the scope frees both.
    root.clear();
    interpreter.closures.iter().for_each(Scope::clear);
    for namespace in &interpreter.namespaces {
        let attributes = namespace.take();
        drop(attributes);
    }
    run?;
    Ok(Rendered { text, generated: interpreter.generated })
}

/// How a body ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Flow {
    Normal,
    Break,
    Continue,
}

/// The state of one rendering.
pub(crate) struct Interpreter<'a> {
    settings: Settings<'a>,
    /// Top-level variables of the template, which its blocks can read.
    root: Scope,
    /// Steps that are left of the settings' `max_steps`.
    fuel: usize,
    depth: usize,
    /// Number of nested blocks whose text is captured instead of printed.
    captures: usize,
    shared: usize,
    generated: Vec<std::ops::Range<usize>>,
    escaped: Escaped,
    /// Scopes that macros and recursive loops close over.
    closures: Vec<Scope>,
    /// Namespaces, which may contain themselves.
    namespaces: Vec<Rc<RefCell<Dict>>>,
}

impl Interpreter<'_> {
    /// Subtracts `steps` from the steps that are left; fails if they do not suffice.
    pub(crate) fn charge(&mut self, steps: usize) -> Result<()> {
        match self.fuel.checked_sub(steps) {
            Some(left) => {
                self.fuel = left;
                Ok(())
            }
            None => {
                let max_steps = self.settings.max_steps;
                Err(Error::budget(format!("the template takes more than {max_steps} steps")))
            }
        }
    }

    /// Whether a value is a text that is escaped already.
    pub(crate) fn is_escaped(&self, value: &Value) -> bool {
        self.escaped.contains(value)
    }

    /// Notes that a text is escaped.
    pub(crate) fn mark_escaped(&mut self, value: &Value) {
        self.escaped.insert(value);
    }

    /// Runs `run` one level deeper.
    fn nested<T>(&mut self, run: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.charge(1)?;
        if self.depth == MAX_DEPTH {
            return Err(Error::budget(format!("the template nests more than {MAX_DEPTH} blocks and calls")));
        }
        self.depth += 1;
        let result = run(self);
        self.depth -= 1;
        result
    }

    fn body(&mut self, body: &[Statement], scope: &Scope, out: &mut String) -> Result<Flow> {
        self.nested(|this| {
            for statement in body {
                check_len(out.len())?;
                let flow = this.statement(&statement.node, scope, out);
                match flow.map_err(|error| error.at(statement.line))? {
                    Flow::Normal => {}
                    ended => return Ok(ended),
                }
            }
            Ok(Flow::Normal)
        })
    }

    /// Appends `str(value)` to `out`, charged by the size of the value.
    pub(crate) fn print(&mut self, value: &Value, out: &mut String) -> Result<()> {
        self.charge(value.size())?;
        push_str(out, value)
    }

    fn print_expression(&mut self, expr: &Expr, scope: &Scope, out: &mut String) -> Result<()> {
        let value = self.evaluate(expr, scope)?;
        // An inline `if` without `else` prints nothing on purpose.
        if let Value::Undefined(missing @ (Missing::Name(_) | Missing::Member(..))) = &value
            && self.settings.is_strict
        {
            return Err(missing.error());
        }
        self.print(&value, out)
    }

    /// Returns the text of a body, and how it ended.
    fn captured(&mut self, body: &[Statement], scope: &Scope) -> Result<(String, Flow)> {
        self.captures += 1;
        let mut text = String::new();
        let run = self.body(body, scope, &mut text);
        self.captures -= 1;
        run.map(|flow| (text, flow))
    }

    fn statement(&mut self, node: &Node, scope: &Scope, out: &mut String) -> Result<Flow> {
        match node {
            Node::Text(text) => {
                self.charge(text.len() / BYTES_A_STEP)?;
                out.push_str(text);
            }
            Node::Print(expr) => self.print_expression(expr, scope, out)?,
            Node::If { arms, otherwise } => {
                for (test, body) in arms {
                    if self.evaluate(test, scope)?.is_true() {
                        return self.body(body, scope, out);
                    }
                }
                return self.body(otherwise, scope, out);
            }
            Node::For(this) => {
                let items = self.evaluate(&this.items, scope)?;
                return self.for_loop(this, &items, 0, scope, out);
            }
            Node::Set { target, value } => {
                let value = self.evaluate(value, scope)?;
                self.assign(target, value, scope)?;
            }
            Node::SetBlock { value, body, .. } | Node::Filter { value, body } => {
                return self.capturing(node, value, body, scope, out);
            }
            Node::Macro(this) => {
                let value = self.closure(this, scope);
                scope.set(this.name.clone(), value);
            }
            Node::Call { call, caller } => {
                let caller = self.closure(caller, scope);
                let value = self.call_with(call, scope, Some(caller))?;
                self.print(&value, out)?;
            }
            Node::With { pairs, body } => {
                let inner = scope.child();
                for (target, value) in pairs {
                    let value = self.evaluate(value, scope)?;
                    self.assign(target, value, &inner)?;
                }
                return self.body(body, &inner, out);
            }
            Node::Generation(this) => self.generation(this, scope, out)?,
            Node::Block { body, is_scoped } => {
                let inner = if *is_scoped { scope.child() } else { self.root.child() };
                return self.body(body, &inner, out);
            }
            Node::Break => return Ok(Flow::Break),
            Node::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::Normal)
    }

    /// Sets or prints the text of a block in its own scope, after the filters of `value`. The text is dropped
    /// where `break` or `continue` leaves the block.
    fn capturing(
        &mut self,
        node: &Node,
        value: &Expr,
        body: &[Statement],
        scope: &Scope,
        out: &mut String,
    ) -> Result<Flow> {
        let (text, flow) = self.captured(body, &scope.child())?;
        if flow != Flow::Normal {
            return Ok(flow);
        }
        let inner = scope.child();
        inner.set(CAPTURED.into(), Value::str(text));
        let value = self.evaluate(value, &inner)?;
        match node {
            Node::SetBlock { target, .. } => self.assign(target, value, scope)?,
            _ => self.print(&value, out)?,
        }
        Ok(Flow::Normal)
    }

    fn closure(&mut self, definition: &Arc<Macro>, scope: &Scope) -> Value {
        self.closures.push(scope.clone());
        Value::Callable(Rc::new(Callable::Macro(definition.clone(), scope.clone())))
    }

    /// Prints a `{% generation %}` block and records where its text lies, unless a larger block captures it.
    fn generation(&mut self, block: &Macro, scope: &Scope, out: &mut String) -> Result<()> {
        let start = out.len();
        self.body(&block.body, &scope.child(), out)?;
        if self.captures == 0 {
            self.generated.push(start..out.len());
        }
        Ok(())
    }

    fn for_loop(
        &mut self,
        this: &Arc<For>,
        items: &Value,
        depth: usize,
        scope: &Scope,
        out: &mut String,
    ) -> Result<Flow> {
        let mut items = items.iterate()?;
        self.charge(items.len())?;
        if let Some(filter) = &this.filter {
            let mut chosen = Vec::new();
            for item in items {
                let inner = scope.child();
                self.assign(&this.target, item.clone(), &inner)?;
                if self.evaluate(filter, &inner)?.is_true() {
                    chosen.push(item);
                }
            }
            items = chosen;
        }
        let recursion = this.recursive.then(|| (this.clone(), scope.clone()));
        if this.recursive {
            self.closures.push(scope.clone());
        }
        let state = Rc::new(Loop::new(items, depth, recursion)?);
        let mut has_whole_turn = false;
        for index in 0..state.len() {
            self.charge(STEPS_A_TURN)?;
            let inner = scope.child();
            inner.set("loop".into(), Value::Loop(state.clone()));
            self.assign(&this.target, state.enter(index), &inner)?;
            match self.body(&this.body, &inner, out)? {
                Flow::Normal => has_whole_turn = true,
                Flow::Continue => {}
                Flow::Break => break,
            }
        }
        // jinja2 records at the end of an iteration that the loop was not empty; `break` and `continue` skip
        // that.
        if has_whole_turn { Ok(Flow::Normal) } else { self.body(&this.otherwise, &scope.child(), out) }
    }

    fn assign(&mut self, target: &Target, value: Value, scope: &Scope) -> Result<()> {
        match target {
            Target::Name(name) => scope.set(name.clone(), value),
            Target::Tuple(targets) => {
                let values = value.iterate()?;
                let (expected, found) = (targets.len(), values.len());
                if expected != found {
                    let what = if found < expected { "not enough" } else { "too many" };
                    return Err(Error::render(format!(
                        "{what} values to unpack (expected {expected}, got {found})"
                    )));
                }
                for (target, value) in targets.iter().zip(values) {
                    self.assign(target, value, scope)?;
                }
            }
            Target::Attribute(name, attribute) => {
                let Some(Value::Namespace(attributes)) = scope.get(name) else {
                    return Err(Error::render("cannot assign attribute on non-namespace object"));
                };
                // Values that are nested without a bound could not be freed, because dropping them recurses.
                self.shared += usize::from(value.has_namespace());
                if self.shared > MAX_SHARED {
                    return Err(Error::budget("the template puts too many namespaces into namespaces"));
                }
                attributes.borrow_mut().insert(Value::Str(attribute.clone()), value)?;
            }
        }
        Ok(())
    }

    fn missing(name: &Arc<str>) -> Value {
        Value::Undefined(Missing::Name(name.clone()))
    }
}
