//! Reporting thread: schedule and retries.

use std::error::Error;
use std::time::Duration;

use tokio::time::Instant;

use super::backoff::Backoff;
use super::connection::{Connection, SendError};
use super::mailbox::{Life, Mailbox};
use super::{Pace, Settings};

/// Time between retries while the end of the process waits for them.
const CLOSING_RETRY: Duration = Duration::from_millis(250);
/// Longest reporting interval that the operator may request.
const MAX_REPORT_EVERY: Duration = Duration::from_secs(300);

pub(super) fn run(mailbox: &Mailbox, settings: &Settings) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime {
        Ok(runtime) => runtime.block_on(Sender::new(settings).drive(mailbox)),
        Err(error) => tracing::warn!(%error, "this process will not report to the operator"),
    }
}

struct Sender<'a> {
    settings: &'a Settings,
    connection: Connection,
    backoff: Backoff,
    report_every: Duration,
    /// Time of the next report, if no urgent change comes first.
    due: Instant,
    is_failing: bool,
}

impl<'a> Sender<'a> {
    fn new(settings: &'a Settings) -> Self {
        let Pace { report_every, first_backoff, longest_backoff, .. } = settings.pace;
        Self {
            settings,
            connection: Connection::default(),
            backoff: Backoff::new(first_backoff, longest_backoff),
            report_every,
            due: Instant::now(),
            is_failing: false,
        }
    }

    async fn drive(mut self, mailbox: &Mailbox) {
        while self.wait(mailbox).await {
            let (report, version) = mailbox.take();
            match self.connection.send(self.settings, report).await {
                Ok(response) => {
                    mailbox.acknowledge(version);
                    self.after_success(response.report_every_seconds);
                }
                Err(error) => self.after_failure(&error),
            }
        }
    }

    /// Waits for the time of the next report; returns false once nothing more is to be sent.
    async fn wait(&mut self, mailbox: &Mailbox) -> bool {
        loop {
            let standing = mailbox.standing();
            match standing.life {
                Life::Closed => return false,
                Life::Closing if !standing.has_urgent => return false,
                Life::Closing => self.due = self.due.min(Instant::now() + CLOSING_RETRY),
                Life::Open => {}
            }
            if Instant::now() >= self.due || (standing.has_urgent && !self.is_failing) {
                return true;
            }
            tokio::select! {
                () = tokio::time::sleep_until(self.due) => {}
                () = mailbox.changed() => {}
            }
        }
    }

    fn after_success(&mut self, report_every_seconds: u32) {
        if self.is_failing {
            tracing::info!(address = self.settings.address, "the operator accepts reports again");
        }
        self.is_failing = false;
        self.backoff.reset();
        if report_every_seconds > 0 {
            self.report_every = Duration::from_secs(report_every_seconds.into()).min(MAX_REPORT_EVERY);
        }
        self.due = Instant::now() + self.report_every;
    }

    fn after_failure(&mut self, error: &SendError) {
        if !self.is_failing {
            let (error, address) = (error as &dyn Error, &self.settings.address);
            tracing::warn!(
                error,
                address,
                "a report was not delivered to the operator; training continues, the report is kept"
            );
        }
        self.is_failing = true;
        self.due = Instant::now() + self.backoff.after_failure();
    }
}
