//! Arguments of a call, by position and by name.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::value::Value;

/// The arguments of a call.
#[derive(Debug, Default)]
pub(crate) struct Given {
    pub(crate) positional: Vec<Value>,
    pub(crate) named: Vec<(Arc<str>, Value)>,
}

impl Given {
    pub(crate) fn with_caller(mut self, caller: Option<Value>) -> Self {
        self.named.extend(caller.map(|caller| ("caller".into(), caller)));
        self
    }

    /// Returns the number of steps that reading all arguments takes.
    pub(crate) fn steps(&self) -> usize {
        let values = self.positional.iter().chain(self.named.iter().map(|(_, value)| value));
        values.map(Value::size).fold(0, usize::saturating_add)
    }

    /// Assigns the arguments to the parameters of `function` with these names, in the order of `names`.
    pub(crate) fn bind<const N: usize>(self, function: &str, names: [&str; N]) -> Result<[Option<Value>; N]> {
        let mut bound = [const { None }; N];
        if self.positional.len() > N {
            let found = self.positional.len();
            return Err(Error::render(format!("{function} takes at most {N} arguments, got {found}")));
        }
        for (place, value) in bound.iter_mut().zip(self.positional) {
            *place = Some(value);
        }
        for (name, value) in self.named {
            match names.iter().position(|own| **own == *name) {
                Some(at) if bound[at].is_none() => bound[at] = Some(value),
                _ => return Err(Error::render(format!("{function} got an unexpected argument '{name}'"))),
            }
        }
        Ok(bound)
    }
}
