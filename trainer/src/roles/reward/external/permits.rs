//! Limit on concurrent calls of interpreters outside of the event loop: the number of processors.

use std::sync::Arc;

use rlt_core::reward::Verdict;
use tokio::sync::Semaphore;

/// Limit of one function's calls, one for each processor.
pub(super) struct ConcurrencyLimit(Arc<Semaphore>);

impl ConcurrencyLimit {
    pub(super) fn of_processors() -> Self {
        let num_processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self(Arc::new(Semaphore::new(num_processors)))
    }

    /// Runs a long call on a thread of its own once a processor is free, and returns its verdict.
    pub(super) async fn run(&self, call: impl FnOnce() -> Verdict + Send + 'static) -> Verdict {
        let Ok(permit) = Arc::clone(&self.0).acquire_owned().await else {
            return Verdict::infra("the queue of calls is closed");
        };
        let called = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            call()
        });
        called.await.unwrap_or_else(|error| Verdict::infra(format!("the interpreter failed: {error}")))
    }
}
