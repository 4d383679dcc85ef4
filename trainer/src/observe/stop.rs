//! Requests to end a run early: signals and the job's deadline, polled between micro-batches.
//!
//! A request ends nothing by itself: the training loop polls it, finishes or drops its work, and saves a
//! checkpoint.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};

/// Reason for stopping a run before its last step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// SIGTERM or SIGINT: preemption, eviction, or Ctrl-C in a terminal.
    Signal,
    /// `runPolicy.activeDeadlineSeconds` has passed.
    Deadline,
}

/// Outcome of a run that ended without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All steps are done.
    Complete,
    /// The run was asked to stop; a checkpoint of the last complete step was saved.
    Stopped(StopReason),
}

/// A request to stop the run, polled by all long work; cheap enough to poll for every decoded token.
#[derive(Clone, Debug)]
pub struct StopRequest {
    signal: Arc<AtomicUsize>,
    deadline: Option<Instant>,
}

impl StopRequest {
    /// Starts to listen for SIGTERM and SIGINT, on a separate thread. The thread that starts the compute
    /// threads must call this first, because the signals spare only the calling thread and threads that it
    /// starts later. A second signal ends the process at once, so that the user can always stop it.
    ///
    /// # Errors
    /// When the operating system refuses the handlers or the thread.
    pub fn listen(active_deadline: Option<Duration>) -> std::io::Result<Self> {
        let signal = Arc::new(AtomicUsize::new(0));
        let armed = Arc::new(std::sync::atomic::AtomicBool::new(false));
        for (number, exit_code) in [(SIGTERM, 143), (SIGINT, 130)] {
            signal_hook::flag::register_conditional_shutdown(number, exit_code, Arc::clone(&armed))?;
            signal_hook::flag::register(number, Arc::clone(&armed))?;
            let value = usize::try_from(number).unwrap_or(1);
            signal_hook::flag::register_usize(number, Arc::clone(&signal), value)?;
        }
        rlt_torch::take_signals_apart(&[SIGTERM, SIGINT])?;
        Ok(Self { signal, deadline: active_deadline.map(|limit| Instant::now() + limit) })
    }

    /// Creates a request that is never made, for tests and for commands without checkpoints.
    pub fn never() -> Self {
        Self { signal: Arc::default(), deadline: None }
    }

    /// Requests the stop from inside the process, as a signal would.
    pub fn request(&self) {
        self.signal.store(1, Ordering::Relaxed);
    }

    /// Returns the reason to stop now; `None` while the run may continue.
    pub fn reason(&self) -> Option<StopReason> {
        if self.signal.load(Ordering::Relaxed) != 0 {
            return Some(StopReason::Signal);
        }
        self.deadline.filter(|at| Instant::now() >= *at).map(|_| StopReason::Deadline)
    }
}

/// Interval at which a guard looks for a request.
const POLL: Duration = Duration::from_millis(50);

/// Watches the setup of a run, in which nothing has to be saved yet. It ends the process if a stop is
/// requested while the setup blocks on a file or a server that never answers.
pub(crate) struct SetupGuard {
    is_over: Arc<Mutex<bool>>,
}

impl SetupGuard {
    /// Watches `stop` until the guard is dropped. Once a request is as old as `grace`, `end` is called, which
    /// ends the process.
    ///
    /// # Errors
    /// When the operating system refuses the thread.
    pub(crate) fn watch(
        stop: StopRequest,
        grace: Duration,
        end: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<Self> {
        let is_over = Arc::new(Mutex::new(false));
        let watched = Arc::clone(&is_over);
        std::thread::Builder::new().name("watch setup".to_owned()).spawn(move || {
            let mut since = None;
            loop {
                std::thread::sleep(POLL);
                // Held until the end, so that no training begins meanwhile.
                let is_over = watched.lock().unwrap_or_else(PoisonError::into_inner);
                if *is_over {
                    return;
                }
                let is_requested = stop.reason().is_some();
                if is_requested && since.get_or_insert_with(Instant::now).elapsed() >= grace {
                    end();
                    return;
                }
            }
        })?;
        Ok(Self { is_over })
    }
}

impl Drop for SetupGuard {
    fn drop(&mut self) {
        *self.is_over.lock().unwrap_or_else(PoisonError::into_inner) = true;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_setup_that_blocks_is_ended_after_a_request_and_one_that_is_over_is_not() {
        let watched = || {
            let (stop, (sender, ended)) = (StopRequest::never(), channel());
            let end = move || sender.send(()).unwrap();
            (stop.clone(), SetupGuard::watch(stop, Duration::ZERO, end).unwrap(), ended)
        };
        let (stop, _guard, ended) = watched();
        stop.request();
        assert_eq!(ended.recv(), Ok(()));
        // The thread ends without a call, which closes the channel.
        let (stop, guard, ended) = watched();
        drop(guard);
        stop.request();
        assert!(ended.recv().is_err());
    }

    #[test]
    fn a_request_is_seen_by_every_clone() {
        let stop = StopRequest::never();
        let clone = stop.clone();
        assert_eq!(clone.reason(), None);
        stop.request();
        assert_eq!(clone.reason(), Some(StopReason::Signal));
    }

    #[test]
    fn the_deadline_is_a_reason_of_its_own() {
        let stop = StopRequest { deadline: Some(Instant::now()), ..StopRequest::never() };
        assert_eq!(stop.reason(), Some(StopReason::Deadline));
    }
}
