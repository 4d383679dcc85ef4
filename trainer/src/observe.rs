//! The output of a run for users and the operator: metrics, progress, phases, reports; and stop requests.

pub(crate) mod completions;
pub(crate) mod found_result;
pub mod observers;
pub mod phases;
pub mod report;
pub mod status_channel;
pub mod stop;
pub mod tracking;
mod warnings;
