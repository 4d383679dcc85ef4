//! From a validated spec to what will run: pure functions, no I/O.

pub mod model_config;
