//! The client of the API server: every call is counted, has a timeout, and passes a rate limit by priority.
//!
//! kube's own retries are off: the caller decides about the next try, and one reconcile cannot occupy its
//! slot for minutes.

mod call;
mod connection;
mod connections;
mod layer;
mod limiter;

use std::time::Duration;

use kube::{Client, Config};

pub use call::{Call, Importance, Verb};
pub use layer::ApiLayer;
pub use limiter::{Closed, Limiter, Turn};

use crate::lease::Term;
use crate::metrics::Metrics;

/// How many calls are made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CallRate {
    /// Calls a second, all the time.
    pub per_second: f64,
    /// Calls at once after a pause.
    pub burst: f64,
}

impl Default for CallRate {
    /// A burst of 200 jobs of eight pods passes at once; the API server's own limits (429) bound the rest.
    fn default() -> Self {
        Self { per_second: 1000.0, burst: 2000.0 }
    }
}

/// Calls in flight at the same time. More than the API server works on would only wait there, without
/// priorities.
pub const MAX_IN_FLIGHT: usize = 64;

/// Time for any call, and for a watch to begin.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// A client whose calls pass `limiter`, are counted by `metrics`, and whose writes end with `term`.
///
/// # Errors
/// The configuration's certificates can not be used.
pub fn client(
    mut config: Config,
    limiter: &Limiter,
    metrics: &Metrics,
    term: &Term,
) -> Result<Client, kube::Error> {
    config.default_retry = false;
    connection::connect(config, &ApiLayer::new(limiter.clone(), metrics.clone()).within(term.clone()))
}
