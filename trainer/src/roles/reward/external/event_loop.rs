//! The thread on which all requests to reward servers run.

use std::{io, thread};

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// A thread with an asynchronous runtime. It ends when its owner is dropped, and drops running tasks.
pub(super) struct EventLoop {
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
}

impl EventLoop {
    pub(super) fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        thread::Builder::new().name("reward-servers".to_owned()).spawn(move || {
            // An owner that was dropped stops the runtime, too.
            let _ = runtime.block_on(stopped);
            runtime.shutdown_background();
        })?;
        Ok(Self { handle, stop: Some(stop) })
    }

    pub(super) fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for EventLoop {
    fn drop(&mut self) {
        self.stop.take().map(|stop| stop.send(()));
    }
}
