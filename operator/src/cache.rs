//! What the operator knows of the cluster: the index of objects, what fills it, and its own writes.

pub mod index;
pub mod namespaces;
pub mod nodes;
pub mod watch;
pub mod written;
