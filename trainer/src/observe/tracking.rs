//! Live metrics of a run, besides the files and servers of [`rlt_tracking`]: Prometheus and the terminal.

pub mod console;
mod prometheus;

pub(crate) use prometheus::{Endpoint, TRACKER as PROMETHEUS, serve as serve_prometheus};
pub use rlt_tracking::{
    CompletionRecord, RunEnd, Stage, StepMetrics, Tracker, TrackerReport, Trackers, TrackersOptions,
    TrackingError, TrainedCompletion, for_each_completion_at_ends, for_each_step,
};
