//! What a caught panic said. Where panics are caught, and what follows, is with those that catch them.

use std::any::Any;

/// The message of a panic, which is a text unless somebody panicked with something else.
pub(crate) fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a message")
}
