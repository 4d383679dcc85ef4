//! The CUDA runtime: its libraries and driver, found at run time, and modules, graphs and streams.

pub(super) mod detect;
pub mod driver;
pub(super) mod graph;
pub(super) mod libraries;
pub(super) mod missing_libraries;
pub(super) mod module;
pub(super) mod stream;
