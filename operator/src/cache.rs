//! The operator's knowledge of the cluster: the index of objects, the watches that fill it, its own writes.

pub mod index;
pub mod namespaces;
pub mod nodes;
pub mod watch;
pub mod written;
