//! Functions, macros and loops as values, and the scopes of variables that they close over.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use super::{Extent, Items, Value};
use crate::ast::{For, Macro};
use crate::error::Result;

/// A value that can be called.
#[derive(Debug)]
pub(crate) enum Callable {
    Global(&'static str),
    Macro(Arc<Macro>, Scope),
    Method(Value, Arc<str>),
    Cycler(Rc<Items>, Cell<usize>),
    /// jinja2's `joiner`, which prints nothing at its first call and its text at every later call.
    Joiner(Arc<str>, Cell<bool>),
}

/// Variables of a block, and the scope around it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scope(Rc<Frame>);

#[derive(Debug, Default)]
struct Frame {
    variables: RefCell<Vec<(Arc<str>, Value)>>,
    parent: Option<Scope>,
}

impl Scope {
    /// Creates an empty scope within this one.
    pub(crate) fn child(&self) -> Self {
        Self(Rc::new(Frame { variables: RefCell::default(), parent: Some(self.clone()) }))
    }

    /// Sets a variable of this scope.
    pub(crate) fn set(&self, name: Arc<str>, value: Value) {
        let mut variables = self.0.variables.borrow_mut();
        match variables.iter_mut().find(|(own, _)| *own == name) {
            Some((_, old)) => *old = value,
            None => variables.push((name, value)),
        }
    }

    /// Returns the variable of this name from the innermost scope that has one.
    pub(crate) fn get(&self, name: &str) -> Option<Value> {
        let mut scope = self;
        loop {
            let found = scope.0.variables.borrow().iter().find(|(own, _)| **own == *name).cloned();
            match (found, &scope.0.parent) {
                (Some((_, value)), _) => return Some(value),
                (None, Some(parent)) => scope = parent,
                (None, None) => return None,
            }
        }
    }

    /// Drops the variables.
    pub(crate) fn clear(&self) {
        let variables = std::mem::take(&mut *self.0.variables.borrow_mut());
        drop(variables);
    }
}

/// The variable `loop`.
#[derive(Debug)]
pub(crate) struct Loop {
    items: Vec<Value>,
    pub(crate) extent: Extent,
    index: Cell<usize>,
    /// Number of loops of the same recursion around this one.
    pub(crate) depth: usize,
    /// Values that were passed to the last call of `loop.changed`.
    pub(crate) changed: RefCell<Option<Vec<Value>>>,
    /// The loop's statement and scope, if the loop is recursive and may be called.
    pub(crate) recursion: Option<(Arc<For>, Scope)>,
}

impl Loop {
    pub(crate) fn new(items: Vec<Value>, depth: usize, recursion: Option<(Arc<For>, Scope)>) -> Result<Self> {
        let extent = Extent::of(&items)?;
        Ok(Self { items, extent, index: Cell::new(0), depth, changed: RefCell::default(), recursion })
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    pub(crate) fn index(&self) -> usize {
        self.index.get()
    }

    pub(crate) fn item(&self, index: usize) -> Option<&Value> {
        self.items.get(index)
    }

    /// Begins an iteration.
    pub(crate) fn enter(&self, index: usize) -> Value {
        self.index.set(index);
        self.items[index].clone()
    }
}
