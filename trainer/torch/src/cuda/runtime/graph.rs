//! A CUDA graph: work of a stream, captured once and replayed by one launch.

use super::driver::{Driver, Handle};
use super::stream::Stream;
use crate::Error;

/// Captured work with fixed memory addresses, so its tensors must live as long as the graph.
#[derive(Debug)]
pub struct Graph {
    graph: Handle,
    executable: Handle,
}

// SAFETY: a graph is not changed after capture, and the driver launches it from any thread.
unsafe impl Send for Graph {}

impl Graph {
    /// Captures the work that `work` enqueues on `stream`, without running it. `work` must neither allocate
    /// device memory nor wait; run it once before, so that libraries have their workspaces. If `work` uses
    /// libtorch, make `stream` libtorch's current stream ([`Stream::enter`]) around the call.
    ///
    /// # Errors
    /// The error of `work`, or the driver's if something was done that cannot be captured.
    pub fn capture<E: From<Error>>(stream: &Stream, work: impl FnOnce() -> Result<(), E>) -> Result<Self, E> {
        // Other threads may allocate during the capture; this one may not.
        const THREAD_LOCAL: i32 = 1;
        let driver = Driver::get()?;
        // SAFETY: a stream that is never destroyed.
        let begun = unsafe { (driver.stream_begin_capture)(stream.handle(), THREAD_LOCAL) };
        driver.check("beginning to capture a graph", begun)?;
        let result = work();
        let mut graph = std::ptr::null_mut();
        // The capture has to end even if `work` failed: the stream would be unusable.
        // SAFETY: a place for the graph.
        let ended = unsafe { (driver.stream_end_capture)(stream.handle(), &mut graph) };
        let mut captured = Self { graph, executable: std::ptr::null_mut() };
        result?;
        driver.check("capturing a graph", ended)?;
        // SAFETY: a graph just captured and a place for its executable form.
        let made = unsafe { (driver.graph_instantiate)(&mut captured.executable, graph, 0) };
        driver.check("instantiating a graph", made)?;
        Ok(captured)
    }

    /// Enqueues all captured work on `stream`, as one launch.
    ///
    /// # Errors
    /// When the driver fails.
    pub fn launch(&self, stream: &Stream) -> Result<(), Error> {
        let driver = Driver::get()?;
        // SAFETY: an instantiated graph; that its tensors live is documented.
        driver.check("launching a graph", unsafe { (driver.graph_launch)(self.executable, stream.handle()) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let Ok(driver) = Driver::get() else { return };
        // SAFETY: each was made by `capture` and is destroyed once; a launch in flight is finished first.
        unsafe {
            if !self.executable.is_null() {
                (driver.graph_exec_destroy)(self.executable);
            }
            if !self.graph.is_null() {
                (driver.graph_destroy)(self.graph);
            }
        }
    }
}
