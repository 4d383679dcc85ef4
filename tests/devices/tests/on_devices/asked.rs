//! The operations that this process has requested of its emulated devices.

use std::ffi::{CStr, c_char, c_void};

/// Counts as the emulated driver returns them: `RltStandInCounts` in stand_in.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asked {
    pub(crate) host_to_device: i64,
    pub(crate) device_to_host: i64,
    pub(crate) device_to_device: i64,
    pub(crate) launches: i64,
    pub(crate) graph_launches: i64,
    pub(crate) waits: i64,
    pub(crate) bytes_host_to_device: i64,
    pub(crate) bytes_device_to_host: i64,
    pub(crate) bytes_device_to_device: i64,
    num_devices: i64,
    pub(crate) peak_bytes: [i64; 16],
    pub(crate) peak_reserved_bytes: [i64; 16],
}

unsafe extern "C" {
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// Returns counts of the work that this process has requested of its devices so far.
fn asked_so_far() -> Asked {
    let name: &CStr = c"rlt_stand_in_counts";
    // SAFETY: looks a name up among the libraries of this process.
    let found = unsafe { dlsym(std::ptr::null_mut(), name.as_ptr()) };
    assert!(!found.is_null(), "no stand-in device is open");
    let mut asked = Asked::default();
    // SAFETY: the function of this name takes a place for these counts.
    unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut Asked)>(found)(&mut asked) };
    asked
}

/// Returns the result of `work`, and counts of the work that it requested of the devices; peaks are those of
/// the process since its start.
pub(crate) fn asked_by<T>(work: impl FnOnce() -> T) -> (T, Asked) {
    let before = asked_so_far();
    let made = work();
    let after = asked_so_far();
    let asked = Asked {
        host_to_device: after.host_to_device - before.host_to_device,
        device_to_host: after.device_to_host - before.device_to_host,
        device_to_device: after.device_to_device - before.device_to_device,
        launches: after.launches - before.launches,
        graph_launches: after.graph_launches - before.graph_launches,
        waits: after.waits - before.waits,
        bytes_host_to_device: after.bytes_host_to_device - before.bytes_host_to_device,
        bytes_device_to_host: after.bytes_device_to_host - before.bytes_device_to_host,
        bytes_device_to_device: after.bytes_device_to_device - before.bytes_device_to_device,
        ..after
    };
    (made, asked)
}
