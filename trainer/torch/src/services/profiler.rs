//! Traces by libtorch's profiler, Kineto.

use std::ffi::CString;
use std::marker::PhantomData;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use crate::Error;
use crate::ffi::{check, rlt_end_profiler, rlt_start_profiler};

/// Recording of this thread's operators and, on GPUs, of all kernels and copies of the process. It ends when
/// it is saved or dropped. A process can have one at a time.
#[derive(Debug)]
pub struct Profile {
    is_recording: bool,
    /// Marker that keeps the value on its thread, because libtorch ends a recording on the thread that
    /// started it.
    of_this_thread: PhantomData<*const ()>,
}

impl Profile {
    /// Starts to record operators, and with `records_device` what GPUs execute.
    ///
    /// # Errors
    /// If another recording is under way, or if libtorch was built without Kineto.
    pub fn start(records_device: bool) -> Result<Self, Error> {
        // SAFETY: a plain value.
        check("starting a profile", unsafe { rlt_start_profiler(records_device) })?;
        Ok(Self { is_recording: true, of_this_thread: PhantomData })
    }

    /// Ends the recording and writes it to `path` as JSON in Chrome's trace event format, which Perfetto
    /// shows. Work of a GPU that has not completed is missing: wait for it before.
    ///
    /// # Errors
    /// If `path` contains a NUL byte, or if libtorch fails. libtorch logs and ignores a file that it cannot
    /// create.
    pub fn save(mut self, path: &Path) -> Result<(), Error> {
        let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| Error::Argument {
            act: "saving a profile",
            expected: "a path without NUL bytes".into(),
            got: path.display().to_string(),
        })?;
        self.is_recording = false;
        // SAFETY: a NUL-terminated path that lives for the call.
        check("saving a profile", unsafe { rlt_end_profiler(name.as_ptr()) })
    }
}

impl Drop for Profile {
    fn drop(&mut self) {
        if self.is_recording {
            // SAFETY: a null path discards the recording. Nothing can be done about an error here.
            let _ = check("ending a profile", unsafe { rlt_end_profiler(std::ptr::null()) });
        }
    }
}
