//! Term of the leader, which ends a fixed time after the last renewal of its Lease. Its writes are cancelled
//! then, before another process may take over the Lease.

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// End of this process's term. Clones share it. A process that never led has no term, and is not limited by
/// one.
#[derive(Clone, Debug)]
pub struct Term {
    end: watch::Sender<Option<Instant>>,
}

impl Default for Term {
    fn default() -> Self {
        Self { end: watch::Sender::new(None) }
    }
}

impl Term {
    /// Sets the time until which this process leads, unless the term is extended again.
    pub(crate) fn set_end(&self, end: Instant) {
        self.end.send_replace(Some(end));
    }

    /// Waits until the term has ended.
    pub(crate) async fn over(&self) {
        let mut end = self.end.subscribe();
        loop {
            let known = *end.borrow_and_update();
            let passed = async {
                match known {
                    Some(end) => sleep_until(end).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = passed => return,
                // The sender is owned by `self`, so it is never closed.
                _ = end.changed() => {}
            }
        }
    }
}
