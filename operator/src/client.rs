//! Client of the API server: every call is counted, has a timeout, and passes a rate limit by priority.
//!
//! kube's own retries are off: the caller decides about retries, so one reconcile cannot occupy its slot for
//! minutes.

mod call;
mod connection;
mod connections;
mod layer;
mod limiter;

use kube::{Client, Config};

pub use call::{Call, Importance, Verb};
pub use layer::{ApiLayer, CALL_TIMEOUT};
pub use limiter::{CallRate, Closed, Limiter, Turn};

use crate::lease::Term;
use crate::metrics::Metrics;

/// Number of calls in flight at the same time. More than the API server processes would only wait there,
/// without priorities.
pub const MAX_IN_FLIGHT: usize = 64;

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
