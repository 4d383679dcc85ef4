//! Values of templates, with Python's rules of truth, equality and order.

mod callable;
mod dict;
mod slices;

use std::cell::RefCell;
use std::cmp::Ordering;
use std::rc::Rc;
use std::sync::Arc;

pub(crate) use callable::{Callable, Loop, Scope};
pub(crate) use dict::{Dict, check_key};
pub(crate) use slices::{indices, resolved};

use crate::ast::Comparison;
use crate::error::{Error, Result};

/// Maximum depth of nested containers that a template may build.
const MAX_DEPTH: usize = 200;
/// Maximum number of steps for printing or comparing a container. Values that occur several times in it count
/// each time, and texts count by their length.
const MAX_SIZE: usize = 4_000_000;
/// Maximum number of items of a list that a template may make from a text or by repetition.
pub(crate) const MAX_ITEMS: usize = 1_000_000;
/// Bytes of a text, and values of a list, that count as one step where they are copied or read.
pub(crate) const BYTES_A_STEP: usize = 64;
const VALUES_A_STEP: usize = 2;

/// A value of a template, as Python has it.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Undefined(Missing),
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(Arc<str>),
    List(Rc<Items>),
    Tuple(Rc<Items>),
    Dict(Rc<Dict>),
    /// `dict.keys()`, `dict.values()` and `dict.items()`, by the name that Python prints.
    View(&'static str, Rc<Items>),
    Range(Rc<Span>),
    /// A generator: its items can be read once.
    Iterator(Rc<Generator>),
    Namespace(Rc<RefCell<Dict>>),
    Callable(Rc<Callable>),
    Loop(Rc<Loop>),
}

/// The origin of an undefined value, for messages of errors.
#[derive(Clone, Debug)]
pub(crate) enum Missing {
    /// A variable of this name.
    Name(Arc<str>),
    /// An attribute or item of a value of this type.
    Member(&'static str, Arc<str>),
    /// A result that does not exist, such as the first item of an empty list.
    Result(&'static str),
}

/// The items of a list or tuple, with bounds of what reading all of it takes.
#[derive(Debug)]
pub(crate) struct Items {
    pub(crate) values: Vec<Value>,
    extent: Extent,
}

/// The items of a generator that were not read yet.
#[derive(Debug)]
pub(crate) struct Generator {
    items: RefCell<std::vec::IntoIter<Value>>,
    extent: Extent,
}

/// Depth and number of values of a container.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Extent {
    depth: usize,
    size: usize,
    /// Whether the container holds a namespace, which may grow later.
    has_namespace: bool,
}

/// `range(start, stop, step)`.
#[derive(Debug)]
pub(crate) struct Span {
    pub(crate) start: i128,
    pub(crate) stop: i128,
    pub(crate) step: i128,
}

impl Span {
    pub(crate) fn len(&self) -> usize {
        let distance = if self.step > 0 { self.stop - self.start } else { self.start - self.stop };
        let step = self.step.abs();
        usize::try_from(((distance + step - 1) / step).max(0)).unwrap_or(usize::MAX)
    }

    pub(crate) fn values(&self) -> Vec<Value> {
        (0i128..).take(self.len()).map(|index| Value::Int(self.start + index * self.step)).collect()
    }
}

impl Extent {
    /// Computes the extent of a container with these items.
    pub(crate) fn of(values: &[Value]) -> Result<Self> {
        let mut extent = Self::default();
        values.iter().for_each(|value| extent.add(value));
        extent.around()
    }

    pub(crate) fn add(&mut self, value: &Value) {
        let inner = value.extent();
        self.depth = self.depth.max(inner.depth);
        self.size = self.size.saturating_add(inner.size).saturating_add(1);
        self.has_namespace |= inner.has_namespace;
    }

    /// Adds the container itself to the extent of its items; fails if the result is too large.
    pub(crate) fn around(mut self) -> Result<Self> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(Error::budget(format!("values are nested more than {MAX_DEPTH} deep")));
        }
        if self.size > MAX_SIZE {
            return Err(Error::budget(format!("a value has more than {MAX_SIZE} parts")));
        }
        Ok(self)
    }
}

impl Missing {
    /// Returns jinja2's message about the use of an undefined value.
    pub(crate) fn message(&self) -> String {
        match self {
            Self::Name(name) => format!("'{name}' is undefined"),
            Self::Member("None", name) => format!("'None' has no attribute '{name}'"),
            Self::Member(kind, name) => format!("'{kind} object' has no attribute '{name}'"),
            Self::Result(message) => (*message).to_owned(),
        }
    }

    pub(crate) fn error(&self) -> Error {
        Error::render(self.message())
    }
}

impl Value {
    pub(crate) fn str(text: impl Into<Arc<str>>) -> Self {
        Self::Str(text.into())
    }

    pub(crate) fn items(values: Vec<Self>) -> Result<Rc<Items>> {
        let extent = Extent::of(&values)?;
        Ok(Rc::new(Items { values, extent }))
    }

    pub(crate) fn list(values: Vec<Self>) -> Result<Self> {
        Self::items(values).map(Self::List)
    }

    pub(crate) fn tuple(values: Vec<Self>) -> Result<Self> {
        Self::items(values).map(Self::Tuple)
    }

    pub(crate) fn view(kind: &'static str, values: Vec<Self>) -> Result<Self> {
        Self::items(values).map(|items| Self::View(kind, items))
    }

    pub(crate) fn iterator(values: Vec<Self>) -> Result<Self> {
        let extent = Extent::of(&values)?;
        Ok(Self::Iterator(Rc::new(Generator { items: RefCell::new(values.into_iter()), extent })))
    }

    /// Converts JSON data to a value.
    pub(crate) fn from_json(json: &serde_json::Value) -> Result<Self> {
        Ok(match json {
            serde_json::Value::Null => Self::None,
            serde_json::Value::Bool(value) => Self::Bool(*value),
            serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(value), _) => Self::Int(value.into()),
                (None, Some(value)) => Self::Int(value.into()),
                _ => Self::Float(number.as_f64().unwrap_or(f64::NAN)),
            },
            serde_json::Value::String(text) => Self::str(text.as_str()),
            serde_json::Value::Array(values) => {
                Self::list(values.iter().map(Self::from_json).collect::<Result<_>>()?)?
            }
            serde_json::Value::Object(entries) => {
                let mut dict = Dict::default();
                for (key, value) in entries {
                    dict.insert(Self::str(key.as_str()), Self::from_json(value)?)?;
                }
                Self::dict(dict)?
            }
        })
    }

    pub(crate) fn dict(dict: Dict) -> Result<Self> {
        dict.extent().around()?;
        Ok(Self::Dict(Rc::new(dict)))
    }

    fn extent(&self) -> Extent {
        match self {
            Self::List(items) | Self::Tuple(items) | Self::View(_, items) => items.extent,
            Self::Dict(dict) => {
                let extent = dict.extent();
                Extent { depth: extent.depth + 1, ..extent }
            }
            Self::Namespace(_) => Extent { depth: 1, size: 1, has_namespace: true },
            Self::Iterator(items) => items.extent,
            Self::Loop(this) => this.extent,
            Self::Callable(callable) => match &**callable {
                Callable::Method(of, _) => {
                    let extent = of.extent();
                    Extent { depth: extent.depth + 1, ..extent }
                }
                Callable::Cycler(items, _) => items.extent,
                Callable::Global(_) | Callable::Macro(..) | Callable::Joiner(..) => Extent::default(),
            },
            Self::Str(text) => Extent { size: text.len() / BYTES_A_STEP, ..Extent::default() },
            _ => Extent::default(),
        }
    }

    /// Returns the number of steps that reading or copying the value takes, without the contents of its
    /// items.
    pub(crate) fn steps(&self) -> usize {
        match self {
            Self::Str(text) => text.len() / BYTES_A_STEP,
            Self::List(items) | Self::Tuple(items) | Self::View(_, items) => {
                items.values.len() / VALUES_A_STEP
            }
            Self::Dict(dict) => dict.len() / VALUES_A_STEP,
            _ => 0,
        }
    }

    /// Returns the number of steps that reading the full value takes, its items included.
    pub(crate) fn size(&self) -> usize {
        self.extent().size
    }

    /// Returns the number of steps that comparing two values by `comparison` takes.
    pub(crate) fn comparison_steps(&self, comparison: Comparison, other: &Self) -> usize {
        let shared = self.size().min(other.size());
        match comparison {
            Comparison::In | Comparison::NotIn if self.is_container() => self.steps() + other.size(),
            Comparison::In | Comparison::NotIn => self.steps().max(1) * other.steps().max(1),
            _ => match (self, other) {
                // Each item of a view is searched for among all items of the other.
                (Self::View(_, a), Self::View(_, b)) => {
                    a.values.len().saturating_mul(b.values.len()).saturating_mul(1 + shared)
                }
                _ => self.steps().min(other.steps()) + shared,
            },
        }
    }

    fn is_container(&self) -> bool {
        matches!(self, Self::List(_) | Self::Tuple(_) | Self::Dict(_) | Self::View(..) | Self::Range(_))
    }

    /// Whether the value is or contains a namespace.
    pub(crate) fn has_namespace(&self) -> bool {
        self.extent().has_namespace
    }

    /// Returns the name of the value's type for messages.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Undefined(_) => "Undefined",
            Self::None => "None",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Float(_) => "float",
            Self::Str(_) => "str",
            Self::List(_) => "list",
            Self::Tuple(_) => "tuple",
            Self::Dict(_) => "dict",
            Self::View(kind, _) => kind,
            Self::Range(_) => "range",
            Self::Iterator(_) => "generator",
            Self::Namespace(_) => "Namespace",
            Self::Callable(_) => "function",
            Self::Loop(_) => "LoopContext",
        }
    }

    /// The text of a string value.
    pub(crate) fn as_str(&self) -> Option<&str> {
        match self {
            Self::Str(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the value as an integer, if it is one. Booleans are integers in Python, too.
    pub(crate) fn as_int(&self) -> Option<i128> {
        match self {
            Self::Int(value) => Some(*value),
            Self::Bool(value) => Some(i128::from(*value)),
            _ => None,
        }
    }

    /// Returns a number as a float; `None` for other values.
    pub(crate) fn as_float(&self) -> Option<f64> {
        match self {
            Self::Float(value) => Some(*value),
            _ => self.as_int().map(|value| value as f64),
        }
    }

    /// Returns whether the value is true, as `bool(value)`.
    pub(crate) fn is_true(&self) -> bool {
        match self {
            Self::Undefined(_) | Self::None => false,
            Self::Bool(value) => *value,
            Self::Int(value) => *value != 0,
            Self::Float(value) => *value != 0.0,
            Self::Str(text) => !text.is_empty(),
            Self::List(items) | Self::Tuple(items) | Self::View(_, items) => !items.values.is_empty(),
            Self::Dict(dict) => dict.len() > 0,
            Self::Range(span) => span.len() > 0,
            Self::Iterator(_) | Self::Namespace(_) | Self::Callable(_) | Self::Loop(_) => true,
        }
    }

    /// Returns the length of the value, as `len(value)`.
    pub(crate) fn len(&self) -> Result<usize> {
        match self {
            Self::Undefined(_) => Ok(0),
            Self::Str(text) => Ok(text.chars().count()),
            Self::List(items) | Self::Tuple(items) | Self::View(_, items) => Ok(items.values.len()),
            Self::Dict(dict) => Ok(dict.len()),
            Self::Range(span) => Ok(span.len()),
            Self::Loop(this) => Ok(this.len()),
            _ => Err(Error::render(format!("object of type '{}' has no len()", self.python_type()))),
        }
    }

    fn python_type(&self) -> &'static str {
        if matches!(self, Self::None) { "NoneType" } else { self.kind() }
    }

    /// Whether `iter(value)` succeeds. Undefined values are empty, `None` is not iterable.
    pub(crate) fn is_iterable(&self) -> bool {
        !matches!(
            self,
            Self::None
                | Self::Bool(_)
                | Self::Int(_)
                | Self::Float(_)
                | Self::Namespace(_)
                | Self::Callable(_)
        )
    }

    /// Returns the items of the value, as `list(value)`.
    pub(crate) fn iterate(&self) -> Result<Vec<Self>> {
        match self {
            Self::Undefined(_) => Ok(Vec::new()),
            Self::Str(text) if text.len() > MAX_ITEMS => {
                Err(Error::budget("the template takes a long text apart into characters"))
            }
            Self::Str(text) => {
                Ok(text.chars().map(|character| Self::str(&*character.encode_utf8(&mut [0; 4]))).collect())
            }
            Self::List(items) | Self::Tuple(items) | Self::View(_, items) => Ok(items.values.clone()),
            Self::Dict(dict) => Ok(dict.iter().map(|(key, _)| key.clone()).collect()),
            Self::Range(span) => Ok(span.values()),
            Self::Iterator(items) => Ok(items.items.borrow_mut().by_ref().collect()),
            _ => Err(Error::render(format!("'{}' object is not iterable", self.python_type()))),
        }
    }

    /// Returns whether the values are equal, as `a == b`.
    pub(crate) fn equals(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Undefined(_), Self::Undefined(_)) | (Self::None, Self::None) => true,
            (Self::Str(a), Self::Str(b)) => a == b,
            (Self::List(a), Self::List(b)) | (Self::Tuple(a), Self::Tuple(b)) => {
                let pairs = || a.values.iter().zip(&b.values);
                Rc::ptr_eq(a, b) || (a.values.len() == b.values.len() && pairs().all(|(a, b)| a.equals(b)))
            }
            (Self::Dict(a), Self::Dict(b)) => Rc::ptr_eq(a, b) || a.equals(b),
            (Self::Range(a), Self::Range(b)) => {
                (a.len(), a.len() > 0 && a.start != b.start, a.len() > 1 && a.step != b.step)
                    == (b.len(), false, false)
            }
            (Self::View(kind, a), Self::View(other, b)) if kind == other && *kind != "dict_values" => {
                a.values.len() == b.values.len()
                    && a.values.iter().all(|a| b.values.iter().any(|b| a.equals(b)))
            }
            (Self::Namespace(a), Self::Namespace(b)) => Rc::ptr_eq(a, b),
            (Self::Callable(a), Self::Callable(b)) => Rc::ptr_eq(a, b),
            (Self::Iterator(a), Self::Iterator(b)) => Rc::ptr_eq(a, b),
            (Self::Loop(a), Self::Loop(b)) => Rc::ptr_eq(a, b),
            _ => compare_numbers(self, other) == Some(Ordering::Equal),
        }
    }

    /// Compares two values; `None` if one of them is NaN.
    ///
    /// # Errors
    /// Values of types that Python does not order.
    pub(crate) fn compare(&self, other: &Self, operator: &str) -> Result<Option<Ordering>> {
        match (self, other) {
            (Self::Undefined(missing), _) | (_, Self::Undefined(missing)) => Err(missing.error()),
            (Self::Str(a), Self::Str(b)) => Ok(Some(a.cmp(b))),
            (Self::List(a), Self::List(b)) | (Self::Tuple(a), Self::Tuple(b)) => {
                let different = a.values.iter().zip(&b.values).find(|(a, b)| !a.equals(b));
                match different {
                    Some((a, b)) => a.compare(b, operator),
                    None => Ok(Some(a.values.len().cmp(&b.values.len()))),
                }
            }
            _ if self.as_float().is_some() && other.as_float().is_some() => Ok(compare_numbers(self, other)),
            _ => Err(Error::render(format!(
                "'{operator}' not supported between instances of '{}' and '{}'",
                self.python_type(),
                other.python_type()
            ))),
        }
    }

    /// Evaluates `item in value`.
    pub(crate) fn contains(&self, item: &Self) -> Result<bool> {
        match self {
            Self::Str(text) => match item {
                Self::Str(part) => Ok(text.contains(&**part)),
                _ => Err(Error::render(format!(
                    "'in <string>' requires string as left operand, not {}",
                    item.python_type()
                ))),
            },
            Self::List(items) | Self::Tuple(items) | Self::View(_, items) => {
                Ok(items.values.iter().any(|value| value.equals(item)))
            }
            Self::Dict(dict) => {
                dict::check_key(item)?;
                Ok(dict.get(item).is_some())
            }
            _ if self.is_iterable() => Ok(self.iterate()?.iter().any(|value| value.equals(item))),
            _ => Err(Error::render(format!("argument of type '{}' is not iterable", self.python_type()))),
        }
    }
}

fn compare_numbers(a: &Value, b: &Value) -> Option<Ordering> {
    match (a.as_int(), b.as_int()) {
        (Some(a), Some(b)) => Some(a.cmp(&b)),
        _ => a.as_float()?.partial_cmp(&b.as_float()?),
    }
}
