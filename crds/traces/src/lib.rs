//! OpenTelemetry traces: the trace of a job's attempt, and the export of spans.
//!
//! ```text
//! job uid + attempt --digest--> attempt --TRACEPARENT--> pods --> run --> step --> phase
//!                                  \--> reconcile --> calls to the API server
//! ```
//! OpenTelemetry's environment variables turn it on. Without them a span costs one untaken branch. Other
//! crates decide which spans exist; this one has no clock, no job and no Kubernetes.

mod attempt;
mod export;
mod ids;
mod variables;

pub use attempt::{AttemptTrace, TRACEPARENT, follow_environment, trace_id, traceparent};
pub use export::{Traces, start};
pub use variables::for_pods;

/// The instrumentation scope of spans.
const SCOPE: &str = "rltraining";

/// The target of every span that is followed. Log lines know nothing of these.
pub const TARGET: &str = "rlt_traces";
