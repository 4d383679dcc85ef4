//! Client of the API server: every call is counted, has a timeout, and passes a rate limit by priority.
//!
//! kube's own retries are off: the caller decides about retries, so one reconcile cannot occupy its slot for
//! minutes.

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

/// Rate limit of calls to the API server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CallRate {
    /// Sustained calls per second.
    pub per_second: f64,
    /// Calls in a burst after a pause.
    pub burst: f64,
}

impl Default for CallRate {
    /// Allows a burst of 200 jobs with eight pods each; the API server's own limits (429) bound the rest.
    fn default() -> Self {
        Self { per_second: 1000.0, burst: 2000.0 }
    }
}

/// Number of calls in flight at the same time. More than the API server processes would only wait there,
/// without priorities.
pub const MAX_IN_FLIGHT: usize = 64;

/// Timeout of a call, and of the start of a watch.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Returns a client whose calls pass `limiter`, are counted by `metrics`, and whose writes are cancelled when
/// `term` ends.
///
/// # Errors
/// The configuration's certificates cannot be used.
pub fn client(
    mut config: Config,
    limiter: &Limiter,
    metrics: &Metrics,
    term: &Term,
) -> Result<Client, kube::Error> {
    config.default_retry = false;
    connection::connect(config, &ApiLayer::new(limiter.clone(), metrics.clone()).within(term.clone()))
}
