//! Modules and interpreters that work, and hostile ones: each ends within its limits, with the same result.

mod interpreter;
mod sandbox;
mod snapshots;
mod wasi;
