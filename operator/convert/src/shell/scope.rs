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
    /// An associative array, as pairs of key and value in the order of their assignment.
    Map(Vec<(String, String)>),
}

/// Largest number of elements of an array to which one element is assigned.
const MAX_ELEMENTS: usize = 4096;

impl Variable {
    /// Value of `$name`; for an array its first element, for a map that of the key 0.
    pub(super) fn scalar(&self) -> &str {
        match self {
            Self::Scalar(value) => value,
            Self::Array(values) => values.first().map_or("", String::as_str),
            Self::Map(pairs) => {
                pairs.iter().find(|(key, _)| key == "0").map_or("", |(_, value)| value.as_str())
            }
        }
    }

    /// Number of bytes of all elements, each with the size of its `String`.
    pub(super) fn num_bytes(&self) -> usize {
        match self {
            Self::Scalar(value) => value.len(),
            Self::Array(values) => values.iter().map(|value| value.len() + size_of::<String>()).sum(),
            Self::Map(pairs) => {
                pairs.iter().map(|(key, value)| key.len() + value.len() + size_of::<(String, String)>()).sum()
            }
        }
    }

    /// Value of `${name[key]}`; a negative index counts from the end.
    pub(super) fn element(&self, key: &str) -> Option<String> {
        if let Self::Map(pairs) = self {
            return pairs.iter().find(|(name, _)| name == key).map(|(_, value)| value.clone());
        }
        let elements = self.elements();
        let index = key.trim().parse::<isize>().ok()?;
        let index = if index < 0 { elements.len().checked_add_signed(index)? } else { index.unsigned_abs() };
        elements.get(index).cloned()
    }

    /// Assigns `name[key]`, an element of a map. An array to which a key is assigned that is no index becomes
    /// a map.
    pub(super) fn set_element(&mut self, key: &str, value: String) {
        if let Self::Map(pairs) = self {
            match pairs.iter_mut().find(|(name, _)| name == key) {
                Some(pair) => pair.1 = value,
                None => pairs.push((key.to_owned(), value)),
            }
            return;
        }
        let mut elements = self.elements();
        match key.trim().parse::<usize>().ok().filter(|index| *index < MAX_ELEMENTS) {
            Some(index) => {
                if elements.len() <= index {
                    elements.resize(index + 1, String::new());
                }
                elements[index] = value;
                *self = Self::Array(elements);
            }
            None => {
                let elements = elements.into_iter().enumerate();
                let mut pairs: Vec<_> = elements.map(|(index, value)| (index.to_string(), value)).collect();
                pairs.push((key.to_owned(), value));
                *self = Self::Map(pairs);
            }
        }
    }

    /// Values of `${name[@]}`.
    pub(super) fn elements(&self) -> Vec<String> {
        match self {
            Self::Scalar(value) => vec![value.clone()],
            Self::Array(values) => values.clone(),
            Self::Map(pairs) => pairs.iter().map(|(_, value)| value.clone()).collect(),
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
