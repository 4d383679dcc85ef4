//! Messages of caught panics. The code that catches a panic decides how to continue.

use std::any::Any;

/// Returns the text of a panic; a placeholder if the panic's payload is not a text.
pub fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a message")
}
