//! The term of the leader, until its Lease expires. Its writes are cancelled at the end, before the next
//! leader begins.

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// The end of this process's term. Clones share it. A process that never led has none, and is bound by none.
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
    /// This process leads until `end`, unless that is put off again.
    pub(crate) fn set_end(&self, end: Instant) {
        self.end.send_replace(Some(end));
    }

    /// Waits until the term is over.
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
                // Its sender lives as long as this.
                _ = end.changed() => {}
            }
        }
    }
}
