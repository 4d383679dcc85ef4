//! The syntax tree of a template.

use std::sync::Arc;

pub(crate) type Body = Vec<Statement>;

/// A statement with the line that it begins on.
#[derive(Debug)]
pub(crate) struct Statement {
    pub(crate) line: usize,
    pub(crate) node: Node,
}

#[derive(Debug)]
pub(crate) enum Node {
    Text(String),
    Print(Expr),
    If {
        arms: Vec<(Expr, Body)>,
        otherwise: Body,
    },
    For(Arc<For>),
    Set {
        target: Target,
        value: Expr,
    },
    /// `{% set x %}..{% endset %}`; `value` reads [`CAPTURED`].
    SetBlock {
        target: Target,
        value: Expr,
        body: Body,
    },
    Macro(Arc<Macro>),
    Call {
        call: Expr,
        caller: Arc<Macro>,
    },
    /// `{% filter f %}..{% endfilter %}`; `value` reads [`CAPTURED`].
    Filter {
        value: Expr,
        body: Body,
    },
    With {
        pairs: Vec<(Target, Expr)>,
        body: Body,
    },
    Generation(Arc<Macro>),
    Block {
        body: Body,
        /// Whether the body sees the variables around it, and not those of the template alone.
        is_scoped: bool,
    },
    Break,
    Continue,
}

/// Name of the variable that holds the text of a captured block; no identifier is spelled like it.
pub(crate) const CAPTURED: &str = "%captured";

#[derive(Debug)]
pub(crate) struct For {
    pub(crate) target: Target,
    pub(crate) items: Expr,
    pub(crate) filter: Option<Expr>,
    pub(crate) recursive: bool,
    pub(crate) body: Body,
    pub(crate) otherwise: Body,
}

#[derive(Debug)]
pub(crate) struct Macro {
    pub(crate) name: Arc<str>,
    pub(crate) parameters: Vec<Parameter>,
    pub(crate) body: Body,
    /// Whether the body reads `varargs`, `kwargs` and `caller`; calls may pass them only then.
    pub(crate) reads: [bool; 3],
}

#[derive(Debug)]
pub(crate) struct Parameter {
    pub(crate) name: Arc<str>,
    pub(crate) default: Option<Expr>,
}

#[derive(Debug)]
pub(crate) enum Target {
    Name(Arc<str>),
    Tuple(Vec<Target>),
    /// `namespace.attribute`.
    Attribute(Arc<str>, Arc<str>),
}

#[derive(Debug, Default)]
pub(crate) struct Arguments {
    pub(crate) positional: Vec<Expr>,
    pub(crate) named: Vec<(Arc<str>, Expr)>,
    /// `*args`.
    pub(crate) more: Option<Box<Expr>>,
    /// `**kwargs`.
    pub(crate) more_named: Option<Box<Expr>>,
}

#[derive(Debug)]
pub(crate) enum Expr {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(Arc<str>),
    Name(Arc<str>),
    List(Vec<Expr>),
    Tuple(Vec<Expr>),
    Dict(Vec<(Expr, Expr)>),
    Attribute(Box<Expr>, Arc<str>),
    Item(Box<Expr>, Box<Expr>),
    Slice(Box<Expr>, Box<[Option<Expr>; 3]>),
    Call(Box<Expr>, Arguments),
    Filter(Box<Expr>, Arc<str>, Arguments),
    Test(Box<Expr>, Arc<str>, Arguments),
    Not(Box<Expr>),
    Negative(Box<Expr>),
    Positive(Box<Expr>),
    And(Box<Expr>, Box<Expr>),
    Or(Box<Expr>, Box<Expr>),
    Binary(Operator, Box<Expr>, Box<Expr>),
    Concat(Vec<Expr>),
    Compare(Box<Expr>, Vec<(Comparison, Expr)>),
    Condition { test: Box<Expr>, then: Box<Expr>, otherwise: Option<Box<Expr>> },
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    FloorDivide,
    Modulo,
    Power,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    In,
    NotIn,
}
