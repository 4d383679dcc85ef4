//! Names of the methods that values have in the sandbox.

use crate::value::{Callable, Value};

/// Methods of strings.
const STRING: [&str; 44] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "format_map",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "upper",
    "zfill",
];

/// Methods of lists, tuples and dictionaries that the sandbox allows.
const SEQUENCE: [&str; 2] = ["count", "index"];
const DICT: [&str; 5] = ["get", "items", "keys", "values", "copy"];
const LOOP: [&str; 2] = ["cycle", "changed"];
const CYCLER: [&str; 2] = ["next", "reset"];

/// Whether a value has a method of this name.
pub(crate) fn exists(value: &Value, name: &str) -> bool {
    match value {
        Value::Str(_) => STRING.contains(&name),
        Value::List(_) => SEQUENCE.contains(&name) || name == "copy",
        Value::Tuple(_) | Value::Range(_) => SEQUENCE.contains(&name),
        Value::Dict(_) => DICT.contains(&name),
        Value::Loop(_) => LOOP.contains(&name),
        Value::Int(_) | Value::Bool(_) => name == "bit_length",
        Value::Float(_) => name == "is_integer",
        Value::Callable(callable) => matches!(**callable, Callable::Cycler(..)) && CYCLER.contains(&name),
        _ => false,
    }
}
