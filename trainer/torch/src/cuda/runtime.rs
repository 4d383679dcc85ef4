//! The CUDA runtime: its libraries and driver, found at run time, and modules, graphs and streams.

pub mod driver;
pub(super) mod found;
pub(super) mod graph;
pub(super) mod libraries;
pub(super) mod module;
pub(super) mod needed;
pub(super) mod stream;
