//! Keeps signals away from threads that compute. The handler decides what a signal means.
//!
//! Code that oneDNN compiles for matrix products uses the stack pointer as a general register. Linux writes a
//! signal's frame to that address, and so over data on the heap: training would continue with wrong values,
//! or crash later.

use std::ffi::c_int;
use std::io;

use crate::ffi::rlt_take_signals;

/// Name of the thread that takes signals.
pub const SIGNALS_THREAD: &str = "signals";

/// Starts a thread that takes `signals` and never computes. From now on `signals` interrupt neither the
/// calling thread nor any thread that it starts; their handlers remain.
///
/// # Errors
/// When the system cannot start another thread.
pub fn take_signals_apart(signals: &'static [c_int]) -> io::Result<()> {
    std::thread::Builder::new().name(SIGNALS_THREAD.to_owned()).spawn(move || {
        // Unblocks them even if the parent process blocks them.
        if set(signals, true).is_ok() {
            loop {
                std::thread::park();
            }
        }
    })?;
    set(signals, false)
}

fn set(signals: &[c_int], takes: bool) -> io::Result<()> {
    // SAFETY: as many numbers as said, which are read and not kept.
    match unsafe { rlt_take_signals(signals.as_ptr(), signals.len(), takes) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    /// SIGWINCH, which has no handler here and ends no process.
    const SIGNALS: &[c_int] = &[28];

    /// Whether a thread of this process receives the signal, by the kernel's report about the thread.
    fn takes(thread: &str) -> bool {
        let status = std::fs::read_to_string(format!("{thread}/status")).unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        u64::from_str_radix(mask.trim(), 16).unwrap() >> (SIGNALS[0] - 1) & 1 == 0
    }

    #[test]
    fn one_thread_takes_signals_and_neither_the_caller_nor_its_threads_do() {
        std::thread::spawn(|| {
            assert!(takes("/proc/thread-self"));
            take_signals_apart(SIGNALS).unwrap();
            assert!(!takes("/proc/thread-self"));
            std::thread::spawn(|| assert!(!takes("/proc/thread-self"))).join().unwrap();
        })
        .join()
        .unwrap();
        let name = |thread: &str| std::fs::read_to_string(format!("{thread}/comm")).unwrap_or_default();
        let one_takes = || {
            let threads = std::fs::read_dir("/proc/self/task").unwrap();
            let mut threads = threads.map(|thread| thread.unwrap().path().display().to_string());
            threads.any(|thread| name(&thread).trim() == SIGNALS_THREAD && takes(&thread))
        };
        // The thread sets its name only once it runs.
        let deadline = Instant::now() + Duration::from_secs(60);
        while !one_takes() {
            assert!(Instant::now() < deadline, "no thread takes signals");
            std::thread::yield_now();
        }
    }
}
