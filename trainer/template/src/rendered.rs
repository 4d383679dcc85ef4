//! The result of a rendering, and the clock that templates read.

use std::ops::Range;

/// The text of a rendered template.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Rendered {
    /// The rendered text.
    pub text: String,
    /// Byte ranges of `text` that `{% generation %}` tags marked, in order.
    pub generated: Vec<Range<usize>>,
}

/// Formats the current time by a `strftime` format, for the template function `strftime_now`.
pub type Clock<'a> = &'a dyn Fn(&str) -> Result<String, String>;
