//! Errors of templates.

use std::fmt;

/// A template cannot be parsed or rendered.
#[derive(Clone, Debug, thiserror::Error)]
pub struct Error {
    kind: ErrorKind,
    line: usize,
    message: String,
}

/// The kinds of [`Error`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ErrorKind {
    /// The template does not follow Jinja's grammar.
    Syntax,
    /// An operation failed, or the template raised an exception.
    Render,
    /// The template takes more steps, text or nesting than is allowed.
    Budget,
}

pub(crate) type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// The kind of the error.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    pub(crate) fn syntax(line: usize, message: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Syntax, line, message: message.into() }
    }

    pub(crate) fn render(message: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Render, line: 0, message: message.into() }
    }

    pub(crate) fn budget(message: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Budget, line: 0, message: message.into() }
    }

    /// Adds the line unless the error has one.
    pub(crate) fn at(mut self, line: usize) -> Self {
        if self.line == 0 {
            self.line = line;
        }
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line > 0 {
            write!(formatter, "line {}: ", self.line)?;
        }
        formatter.write_str(&self.message)
    }
}
