//! What people and the operator see of a run: metrics, progress, phases, reports; and how they ask it to
//! stop.

pub(crate) mod completions;
pub mod phases;
pub mod report;
pub mod status_channel;
pub mod stop;
pub mod tracking;
mod warnings;
pub mod watch;
