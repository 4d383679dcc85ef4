//! Variables, functions and arguments of a shell, and notes on unknown ones.

use std::collections::{BTreeMap, HashMap};

use brush_parser::ast::CompoundCommand;

/// Largest number of notes on a script.
const MAX_NOTES: usize = 200;

/// The value of a variable.
#[derive(Clone, Debug)]
pub(super) enum Variable {
    Scalar(String),
    Array(Vec<String>),
}

impl Variable {
    /// Value of `$name`; for an array its first element.
    pub(super) fn scalar(&self) -> &str {
        match self {
            Self::Scalar(value) => value,
            Self::Array(values) => values.first().map_or("", String::as_str),
        }
    }

    /// Number of bytes of all elements, each with the size of its `String`.
    pub(super) fn num_bytes(&self) -> usize {
        match self {
            Self::Scalar(value) => value.len(),
            Self::Array(values) => values.iter().map(|value| value.len() + size_of::<String>()).sum(),
        }
    }

    /// Values of `${name[@]}`.
    pub(super) fn elements(&self) -> Vec<String> {
        match self {
            Self::Scalar(value) => vec![value.clone()],
            Self::Array(values) => values.clone(),
        }
    }
}

/// Variables, functions and arguments that a command can use.
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

    /// Adds a note, once.
    pub(super) fn note(&mut self, note: String) {
        if self.notes.len() < MAX_NOTES && !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    pub(super) fn shift(&mut self, count: usize) {
        self.arguments.drain(..count.min(self.arguments.len()));
    }

    /// Replaces the arguments, for a function call, and returns the previous ones.
    pub(super) fn replace_arguments(&mut self, arguments: Vec<String>) -> Vec<String> {
        std::mem::replace(&mut self.arguments, arguments)
    }
}
