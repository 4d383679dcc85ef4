//! The emulated driver in this process: its counts, and functions of CUDA's driver that a test calls
//! directly.

use std::ffi::{CStr, c_char, c_int, c_void};

use crate::Counts;

unsafe extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

const NOW: c_int = 2;
const MOST_DEVICES: usize = 16;

/// Counts as the emulated driver returns them: `RltStandInCounts` in stand_in.h.
#[repr(C)]
struct RawCounts {
    numbers: [i64; 9],
    num_devices: i64,
    peak_bytes: [i64; MOST_DEVICES],
    peak_reserved_bytes: [i64; MOST_DEVICES],
}

/// Looks up a function of `libcuda.so.1`; `None` if there is no such library or function.
///
/// # Safety
/// `F` is the function's type, an `unsafe extern "C" fn`.
pub unsafe fn function<F: Copy>(name: &CStr) -> Option<F> {
    // SAFETY: promised by the caller.
    unsafe { function_of(c"libcuda.so.1", name) }
}

/// Looks up a function of `library`; `None` if there is no such library or function.
///
/// # Safety
/// As [`function`].
pub unsafe fn function_of<F: Copy>(library: &CStr, name: &CStr) -> Option<F> {
    // SAFETY: NUL-terminated names; a function pointer is as large as any pointer, as the caller promises its
    // type.
    unsafe {
        let library = dlopen(library.as_ptr(), NOW);
        let found = if library.is_null() { library } else { dlsym(library, name.as_ptr()) };
        (!found.is_null()).then(|| std::mem::transmute_copy::<*mut c_void, F>(&found))
    }
}

/// Returns the counts of this process so far; `None` without emulated devices.
pub fn counts() -> Option<Counts> {
    type Read = unsafe extern "C" fn(*mut RawCounts);
    let none = [0; MOST_DEVICES];
    let mut raw = RawCounts { numbers: [0; 9], num_devices: 0, peak_bytes: none, peak_reserved_bytes: none };
    // SAFETY: declared so in stand_in.h, and a place for its answer.
    unsafe { function::<Read>(c"rlt_stand_in_counts")?(&mut raw) };
    let number = |at: usize| raw.numbers[at].unsigned_abs();
    let peaks = |of_all: &[i64; MOST_DEVICES]| {
        let num_devices = raw.num_devices.unsigned_abs() as usize;
        of_all.iter().take(num_devices).map(|bytes| bytes.unsigned_abs()).collect()
    };
    Some(Counts {
        host_to_device: number(0),
        device_to_host: number(1),
        device_to_device: number(2),
        launches: number(3),
        graph_launches: number(4),
        waits: number(5),
        bytes_host_to_device: number(6),
        bytes_device_to_host: number(7),
        bytes_device_to_device: number(8),
        peak_bytes: peaks(&raw.peak_bytes),
        peak_reserved_bytes: peaks(&raw.peak_reserved_bytes),
    })
}
