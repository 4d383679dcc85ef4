//! An item that was read from a row.

/// Item after the length limit was applied.
pub(crate) enum Fitted<T> {
    Whole(T),
    Truncated(T),
    TooLong,
}
