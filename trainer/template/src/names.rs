//! Names of the variables that a template prints.

use std::collections::BTreeSet;

use crate::ast::{CAPTURED, Expr, Macro, Node, Statement, Target};

/// Returns the names that `body` prints, alone or by an attribute, item, slice or filter, and does not set. A
/// value with a default is left out.
pub(crate) fn printed(body: &[Statement]) -> BTreeSet<&str> {
    let mut names = Names::default();
    names.read(body);
    let Names { mut printed, set } = names;
    printed.retain(|name| !set.contains(name));
    printed
}

#[derive(Default)]
struct Names<'a> {
    printed: BTreeSet<&'a str>,
    /// Names that are set anywhere in the template, whatever their scope.
    set: BTreeSet<&'a str>,
}

impl<'a> Names<'a> {
    fn read(&mut self, body: &'a [Statement]) {
        body.iter().for_each(|statement| self.read_node(&statement.node));
    }

    fn read_node(&mut self, node: &'a Node) {
        match node {
            Node::Text(_) | Node::Break | Node::Continue => {}
            Node::Print(expr) => self.printed.extend(root(expr)),
            Node::If { arms, otherwise } => {
                arms.iter().for_each(|(_, body)| self.read(body));
                self.read(otherwise);
            }
            Node::For(this) => {
                self.set.insert("loop");
                self.bind(&this.target);
                self.read(&this.body);
                self.read(&this.otherwise);
            }
            Node::Set { target, .. } => self.bind(target),
            Node::SetBlock { target, body, .. } => {
                self.bind(target);
                self.read(body);
            }
            Node::Macro(this) | Node::Generation(this) => self.read_macro(this),
            Node::Call { caller, .. } => self.read_macro(caller),
            Node::Filter { body, .. } | Node::Block { body, .. } => self.read(body),
            Node::With { pairs, body } => {
                pairs.iter().for_each(|(target, _)| self.bind(target));
                self.read(body);
            }
        }
    }

    fn read_macro(&mut self, this: &'a Macro) {
        self.set.extend(["caller", "varargs", "kwargs", &*this.name]);
        self.set.extend(this.parameters.iter().map(|parameter| &*parameter.name));
        self.read(&this.body);
    }

    fn bind(&mut self, target: &'a Target) {
        match target {
            Target::Name(name) => {
                self.set.insert(name);
            }
            Target::Tuple(targets) => targets.iter().for_each(|target| self.bind(target)),
            // The namespace was set before.
            Target::Attribute(..) => {}
        }
    }
}

/// Returns the name of the variable from which a printed value comes.
fn root(expr: &Expr) -> Option<&str> {
    match expr {
        Expr::Name(name) => Some(&**name).filter(|name| *name != CAPTURED),
        Expr::Attribute(of, _) | Expr::Item(of, _) | Expr::Slice(of, _) => root(of),
        Expr::Filter(of, filter, _) if !matches!(&**filter, "default" | "d") => root(of),
        _ => None,
    }
}
