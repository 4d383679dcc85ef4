//! OpenTelemetry traces: which trace an attempt of a job belongs to, and how spans leave a process.
//!
//! ```text
//! job uid + attempt --digest--> attempt --TRACEPARENT--> pods --> run --> step --> phase
//!                                  \--> reconcile --> calls to the API server
//! ```
//! A process turns it on by the variables that OpenTelemetry knows. Off, a span is a branch that is not
//! taken. What is followed is the business of those who do it; no clock, no job and no Kubernetes here.

mod attempt;
mod export;
mod ids;
mod variables;

pub use attempt::{AttemptTrace, TRACEPARENT, follow_environment, trace_id, traceparent};
pub use export::{Traces, start};
pub use variables::for_pods;

/// What spans are said to be made by.
const SCOPE: &str = "rltraining";

/// The target of every span that is followed. Log lines know nothing of these.
pub const TARGET: &str = "rlt_traces";
