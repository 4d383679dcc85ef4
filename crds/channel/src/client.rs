//! Client that reports status: a process keeps its newest state in a mailbox, and a separate thread sends it
//! to the operator.
//!
//! ```text
//! training -> Client::update -> mailbox (the newest state, once) -> thread -> TLS -> operator
//! ```
//! Whatever is wrong with the operator (absent, slow, hanging, refusing, restarting, unknown certificate), a
//! call here takes microseconds and never fails. Every report contains the full state, so a delayed report
//! loses nothing and memory does not grow; a stream of events would need acknowledgements. This module does
//! not interpret the state.

mod backoff;
mod bounded;
mod connection;
mod follower;
mod mailbox;
mod sender;
mod settings;

use std::sync::Arc;
use std::time::Duration;

pub use bounded::bound;
pub use follower::Follower;
use mailbox::Mailbox;
pub use settings::{Pace, Settings, SettingsError};

use crate::{Ending, ReportRequest};

/// How soon a change must be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// Sent with the next scheduled report.
    Routine,
    /// Sent at once, unless the operator is unreachable.
    AtOnce,
}

/// Handle of this process's reports; clones share the same state.
#[derive(Clone, Debug)]
pub struct Client {
    mailbox: Arc<Mailbox>,
}

impl Client {
    /// Starts the reporting thread.
    ///
    /// # Errors
    /// The operating system refuses a thread.
    pub fn start(settings: Settings) -> std::io::Result<Self> {
        let mailbox = Arc::new(Mailbox::new(settings.source.clone()));
        let client = Self { mailbox: Arc::clone(&mailbox) };
        // Never joined: an operator that hangs must not delay the end of the run.
        std::thread::Builder::new()
            .name("report status".into())
            .spawn(move || sender::run(&mailbox, &settings))?;
        Ok(client)
    }

    /// Changes the state. Never waits for the operator.
    pub fn update(&self, urgency: Urgency, change: impl FnOnce(&mut ReportRequest)) {
        self.mailbox.update(urgency, change);
    }

    /// Returns the newest state, whether the operator has received it or not.
    pub fn newest(&self) -> ReportRequest {
        self.mailbox.newest()
    }

    /// Reports how the process ends, and waits at most `timeout` for the operator's acknowledgement. Returns
    /// whether the operator has acknowledged. Nothing is reported afterwards.
    pub fn finish(&self, ending: Ending, timeout: Duration) -> bool {
        self.mailbox.update(Urgency::AtOnce, |report| report.ending = Some(ending));
        self.mailbox.close(timeout)
    }
}
