//! Variables, functions and arguments of a shell, and which of them are unknown.

use std::collections::{BTreeMap, HashMap};

use brush_parser::ast::CompoundCommand;

/// Remarks about a script that are kept at most.
const MAX_NOTES: usize = 200;

/// The value of a variable.
#[derive(Clone, Debug)]
pub(super) enum Variable {
    Scalar(String),
    Array(Vec<String>),
}

impl Variable {
    /// What `$name` is: of an array its first element.
    pub(super) fn scalar(&self) -> &str {
        match self {
            Self::Scalar(value) => value,
            Self::Array(values) => values.first().map_or("", String::as_str),
        }
    }

    /// Bytes of all elements, each with the size of its own.
    pub(super) fn num_bytes(&self) -> usize {
        match self {
            Self::Scalar(value) => value.len(),
            Self::Array(values) => values.iter().map(|value| value.len() + size_of::<String>()).sum(),
        }
    }

    /// What `${name[@]}` is.
    pub(super) fn elements(&self) -> Vec<String> {
        match self {
            Self::Scalar(value) => vec![value.clone()],
            Self::Array(values) => values.clone(),
        }
    }
}

/// All names that a command sees.
#[derive(Debug, Default)]
pub(super) struct Scope {
    pub(super) variables: HashMap<String, Variable>,
    pub(super) functions: HashMap<String, CompoundCommand>,
    pub(super) arguments: Vec<String>,
    pub(super) notes: Vec<String>,
}

impl Scope {
    pub(super) fn new(environment: &BTreeMap<String, String>, arguments: &[String]) -> Self {
        let variables =
            environment.iter().map(|(name, value)| (name.clone(), Variable::Scalar(value.clone())));
        Self { variables: variables.collect(), arguments: arguments.to_vec(), ..Self::default() }
    }

    pub(super) fn set(&mut self, name: &str, value: String) {
        self.variables.insert(name.to_owned(), Variable::Scalar(value));
    }

    /// Says once what is not known.
    pub(super) fn note(&mut self, note: String) {
        if self.notes.len() < MAX_NOTES && !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    pub(super) fn shift(&mut self, count: usize) {
        self.arguments.drain(..count.min(self.arguments.len()));
    }

    /// Gives a function its arguments, and back the ones of its caller.
    pub(super) fn replace_arguments(&mut self, arguments: Vec<String>) -> Vec<String> {
        std::mem::replace(&mut self.arguments, arguments)
    }
}
