//! Dictionaries: entries in the order in which keys were first set, equal keys as Python finds them.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Extent, Value};
use crate::error::{Error, Result};

/// Number of entries at which a dictionary begins to find text keys by an index.
const INDEXED: usize = 16;

/// A dictionary that keeps the order of insertion.
#[derive(Clone, Debug, Default)]
pub(crate) struct Dict {
    entries: Vec<(Value, Value)>,
    /// Entry of each text key, if there are at least [`INDEXED`] entries.
    index: HashMap<Arc<str>, usize>,
    extent: Extent,
}

/// Refuses keys that Python cannot hash.
pub(crate) fn check_key(key: &Value) -> Result<()> {
    match key {
        Value::List(_) | Value::Dict(_) | Value::View(..) => {
            Err(Error::render(format!("unhashable type: '{}'", key.kind())))
        }
        Value::Tuple(items) => items.values.iter().try_for_each(check_key),
        _ => Ok(()),
    }
}

impl Dict {
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn extent(&self) -> Extent {
        self.extent
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (&Value, &Value)> {
        self.entries.iter().map(|(key, value)| (key, value))
    }

    fn find(&self, key: &Value) -> Option<usize> {
        match key {
            Value::Str(text) => self.find_text(text),
            _ => self.entries.iter().position(|(own, _)| own.equals(key)),
        }
    }

    fn find_text(&self, text: &str) -> Option<usize> {
        if self.entries.len() >= INDEXED {
            return self.index.get(text).copied();
        }
        self.entries.iter().position(|(own, _)| own.as_str() == Some(text))
    }

    pub(crate) fn get(&self, key: &Value) -> Option<&Value> {
        self.find(key).map(|at| &self.entries[at].1)
    }

    pub(crate) fn get_text(&self, key: &str) -> Option<&Value> {
        self.find_text(key).map(|at| &self.entries[at].1)
    }

    /// Sets the value of a key.
    pub(crate) fn insert(&mut self, key: Value, value: Value) -> Result<()> {
        check_key(&key)?;
        self.extent.add(&value);
        if let Some(at) = self.find(&key) {
            self.entries[at].1 = value;
            return Ok(());
        }
        self.extent.add(&key);
        self.entries.push((key, value));
        if self.entries.len() == INDEXED {
            let texts = self.entries.iter().enumerate();
            self.index = texts.filter_map(|(at, (key, _))| Some((text_of(key)?, at))).collect();
        } else if self.entries.len() > INDEXED
            && let Some((key, _)) = self.entries.last()
            && let Some(text) = text_of(key)
        {
            self.index.insert(text, self.entries.len() - 1);
        }
        Ok(())
    }

    /// Returns the number of steps that inserting all keys takes. A key that is not a text is compared with
    /// all before it.
    pub(crate) fn insertion_steps(&self) -> usize {
        let others = self.entries.iter().filter(|(key, _)| key.as_str().is_none()).count();
        let keys = self.entries.iter().map(|(key, _)| 1 + key.size()).fold(0, usize::saturating_add);
        self.entries.len().saturating_add(others.saturating_mul(keys))
    }

    pub(crate) fn equals(&self, other: &Self) -> bool {
        self.len() == other.len()
            && self.iter().all(|(key, value)| other.get(key).is_some_and(|other| value.equals(other)))
    }
}

fn text_of(key: &Value) -> Option<Arc<str>> {
    match key {
        Value::Str(text) => Some(text.clone()),
        _ => None,
    }
}
