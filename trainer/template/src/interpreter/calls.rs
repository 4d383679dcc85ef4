//! Functions of templates, macros, and how their arguments are bound.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::Interpreter;
use crate::ast::Macro;
use crate::error::{Error, Result};
use crate::given::Given;
use crate::methods;
use crate::text::str_of;
use crate::value::{Callable, Dict, Loop, Missing, Scope, Span, Value};

/// Maximum length of a range, which is that of jinja2's sandbox.
const MAX_RANGE: usize = 100_000;

/// Maximum number of pairs for `dict()`: keys that are not texts are found by a linear search.
const MAX_PAIRS: usize = 10_000;

/// The functions that every template has.
const GLOBALS: [&str; 7] =
    ["range", "dict", "namespace", "cycler", "joiner", "raise_exception", "strftime_now"];

impl Interpreter<'_> {
    pub(super) fn global(name: &str) -> Option<Value> {
        let found = GLOBALS.into_iter().find(|global| *global == name)?;
        Some(Value::Callable(Rc::new(Callable::Global(found))))
    }

    /// Calls a value.
    pub(crate) fn call(&mut self, callee: &Value, given: Given) -> Result<Value> {
        match callee {
            Value::Undefined(missing) => Err(missing.error()),
            Value::Loop(this) => self.recurse(this, given),
            Value::Callable(callable) => match &**callable {
                Callable::Global(name) => self.call_global(name, given),
                Callable::Macro(definition, scope) => self.call_macro(definition, scope, given),
                Callable::Method(target, name) => self.call_method(target, name, given),
                Callable::Cycler(..) => Err(Error::render("'Cycler' object is not callable")),
                Callable::Joiner(text, used) => {
                    Ok(if used.replace(true) { Value::Str(text.clone()) } else { Value::str("") })
                }
            },
            _ => Err(Error::render(format!("'{}' object is not callable", callee.kind()))),
        }
    }

    /// Calls the method in `target.name(given)`, and charges for what it reads and creates.
    pub(super) fn call_method(&mut self, target: &Value, name: &str, given: Given) -> Result<Value> {
        // Only these methods compare the items of their target with an argument.
        let compares = matches!(name, "index" | "count" | "changed");
        self.charge(target.steps() + if compares { target.size() } else { 0 })?;
        self.charge(given.steps())?;
        let is_plain = given.positional.is_empty() && given.named.is_empty();
        let result = methods::call(target, name, given)?;
        if is_plain && self.is_escaped(target) {
            self.mark_escaped(&result);
        }
        self.charge(result.steps())?;
        Ok(result)
    }

    fn recurse(&mut self, this: &Rc<Loop>, given: Given) -> Result<Value> {
        let [items] = given.bind("loop", ["iterable"])?;
        let Some((definition, scope)) = &this.recursion else {
            return Err(Error::render("The loop must have the 'recursive' marker to be called recursively."));
        };
        let items = items.unwrap_or(Value::None);
        let mut text = String::new();
        self.captures += 1;
        let run = self.nested(|this_rendering| {
            this_rendering.for_loop(definition, &items, this.depth + 1, scope, &mut text)
        });
        self.captures -= 1;
        run.map(|_| Value::str(text))
    }

    fn call_global(&mut self, name: &str, given: Given) -> Result<Value> {
        self.charge(given.steps())?;
        match name {
            "range" => range(given),
            "dict" | "namespace" => {
                let entries = dict(given)?;
                self.charge(entries.insertion_steps())?;
                if name == "dict" {
                    return Value::dict(entries);
                }
                let namespace = Rc::new(RefCell::new(entries));
                self.namespaces.push(namespace.clone());
                Ok(Value::Namespace(namespace))
            }
            "cycler" if given.positional.is_empty() => {
                Err(Error::render("at least one item has to be provided"))
            }
            "cycler" => {
                let items = Value::items(given.positional)?;
                Ok(Value::Callable(Rc::new(Callable::Cycler(items, Cell::new(0)))))
            }
            "joiner" => {
                let [text] = given.bind("joiner", ["sep"])?;
                let text = text.map_or(Ok(", ".to_owned()), |text| str_of(&text))?;
                Ok(Value::Callable(Rc::new(Callable::Joiner(text.into(), Cell::new(false)))))
            }
            "raise_exception" => {
                let [message] = given.bind(name, ["message"])?;
                Err(Error::render(str_of(&message.unwrap_or(Value::None))?))
            }
            _ => {
                let [format] = given.bind(name, ["format"])?;
                let format = str_of(&format.unwrap_or(Value::None))?;
                (self.settings.clock)(&format).map(Value::str).map_err(Error::render)
            }
        }
    }

    fn call_macro(&mut self, definition: &Macro, scope: &Scope, given: Given) -> Result<Value> {
        let scope = scope.child();
        let name = &definition.name;
        let [reads_varargs, reads_kwargs, reads_caller] = definition.reads;
        let mut positional = given.positional.into_iter();
        let mut named = given.named;
        let mut absent = Vec::new();
        for parameter in &definition.parameters {
            let by_name = named.iter().position(|(own, _)| *own == parameter.name);
            let value = match (positional.next(), by_name) {
                (Some(_), Some(_)) => {
                    let parameter = &parameter.name;
                    return Err(Error::render(format!("macro '{name}' got two values for '{parameter}'")));
                }
                (Some(value), None) => value,
                (None, Some(at)) => named.remove(at).1,
                (None, None) => {
                    absent.push(parameter);
                    Self::missing(&parameter.name)
                }
            };
            scope.set(parameter.name.clone(), value);
        }
        // Default values can read the other parameters, and variables around the macro that no parameter
        // shadows.
        for parameter in absent {
            if let Some(default) = &parameter.default {
                let value = self.evaluate(default, &scope)?;
                scope.set(parameter.name.clone(), value);
            }
        }
        let rest: Vec<Value> = positional.collect();
        if !rest.is_empty() && !reads_varargs {
            let count = definition.parameters.len();
            return Err(Error::render(format!("macro '{name}' takes not more than {count} argument(s)")));
        }
        let caller = named.iter().position(|(name, _)| &**name == "caller").map(|at| named.remove(at).1);
        let is_declared = definition.parameters.iter().any(|parameter| &*parameter.name == "caller");
        match caller {
            Some(_) if !reads_caller => {
                return Err(Error::render(format!("macro '{name}' takes no keyword argument 'caller'")));
            }
            Some(caller) => scope.set("caller".into(), caller),
            None if reads_caller && !is_declared => {
                scope.set("caller".into(), Value::Undefined(Missing::Result("No caller defined")));
            }
            None => {}
        }
        if reads_varargs {
            scope.set("varargs".into(), Value::tuple(rest)?);
        }
        if reads_kwargs {
            let mut kwargs = Dict::default();
            named.drain(..).try_for_each(|(name, value)| kwargs.insert(Value::Str(name), value))?;
            scope.set("kwargs".into(), Value::dict(kwargs)?);
        }
        if let Some((unknown, _)) = named.first() {
            return Err(Error::render(format!("macro '{name}' takes no keyword argument '{unknown}'")));
        }
        self.captured(&definition.body, &scope).map(|(text, _)| Value::str(text))
    }
}

fn dict(given: Given) -> Result<Dict> {
    let mut entries = Dict::default();
    match given.positional.as_slice() {
        [] => {}
        [Value::Undefined(missing)] => return Err(missing.error()),
        [Value::Dict(from)] => {
            from.iter().try_for_each(|(key, value)| entries.insert(key.clone(), value.clone()))?
        }
        [pairs] => {
            let pairs = pairs.iterate()?;
            if pairs.len() > MAX_PAIRS {
                return Err(Error::budget(format!("dict() takes at most {MAX_PAIRS} pairs")));
            }
            for pair in pairs {
                let pair = pair.iterate()?;
                let [key, value] = pair.as_slice() else {
                    return Err(Error::render("dict() takes pairs of key and value"));
                };
                entries.insert(key.clone(), value.clone())?;
            }
        }
        _ => return Err(Error::render("dict expected at most 1 argument")),
    }
    for (name, value) in given.named {
        entries.insert(Value::Str(name), value)?;
    }
    Ok(entries)
}

fn range(given: Given) -> Result<Value> {
    let numbers: Option<Vec<i128>> = given.positional.iter().map(Value::as_int).collect();
    let span = match numbers.as_deref() {
        Some([stop]) => Span { start: 0, stop: *stop, step: 1 },
        Some([start, stop]) => Span { start: *start, stop: *stop, step: 1 },
        Some([_, _, 0]) => return Err(Error::render("range() arg 3 must not be zero")),
        Some([start, stop, step]) => Span { start: *start, stop: *stop, step: *step },
        _ => return Err(Error::render("range() takes one to three integers")),
    };
    if [span.start, span.stop, span.step].iter().any(|number| number.unsigned_abs() > 1 << 64)
        || span.len() > MAX_RANGE
    {
        let limit = format!("Range too big. The sandbox blocks ranges larger than MAX_RANGE ({MAX_RANGE}).");
        return Err(Error::render(limit));
    }
    Ok(Value::Range(Rc::new(span)))
}
