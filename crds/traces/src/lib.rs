//! OpenTelemetry traces: the trace of a job's attempt, and the export of spans.
//!
//! ```text
//! job uid + attempt --digest--> attempt --TRACEPARENT--> pods --> run --> step --> phase
//!                                  \--> reconcile --> calls to the API server
//! ```
//! OpenTelemetry's environment variables turn export on. Without them a span costs one untaken branch. Other
//! crates decide which spans exist; this crate knows no clock, no job and no Kubernetes.

mod attempt;
mod export;
mod ids;
mod variables;

pub use attempt::{AttemptTrace, TRACEPARENT, follow_environment, trace_id, traceparent};
pub use export::{Traces, start};
pub use variables::for_pods;

/// Instrumentation scope of the spans.
const SCOPE: &str = "rltraining";

/// Target of all exported spans. Log lines do not use it.
pub const TARGET: &str = "rlt_traces";
