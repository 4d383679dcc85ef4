//! The store's handle for c10d: a function that C++ calls, with a reference to a connection.
//! `csrc/collectives.cpp` wraps it as a `c10d::Store`.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::time::Duration;

use super::Connection;
use super::wire::Operation;

/// Callback that copies `len` bytes, which are freed after it returns.
type Take = unsafe extern "C" fn(into: *mut c_void, data: *const u8, len: usize);

/// `StoreHandle` in collectives.cpp: a reference to a connection, which C++ releases once by `release`.
#[derive(Debug)]
#[repr(C)]
pub(in crate::collectives) struct StoreHandle {
    connection: *const c_void,
    ask: unsafe extern "C" fn(*const c_void, *const Asked, *mut c_void, Take) -> c_int,
    release: unsafe extern "C" fn(*const c_void),
}

/// `Asked` in collectives.cpp: one request to the store.
#[derive(Debug)]
#[repr(C)]
struct Asked {
    operation: u8,
    wait_ms: u64,
    name: *const u8,
    name_len: usize,
    value: *const u8,
    value_len: usize,
}

const ANSWERED: c_int = 0;
const NOTHING: c_int = 1;
const FAILED: c_int = 2;

impl StoreHandle {
    pub(super) fn new(connection: &Arc<Connection>) -> Self {
        Self { connection: Arc::into_raw(Arc::clone(connection)).cast(), ask, release }
    }
}

/// Sends a request, and passes the answer or the error message to `take`.
///
/// # Safety
/// `connection` is that of a [`StoreHandle`] that was not released; `asked` has as many bytes as it says;
/// `take` may be called with `into`.
unsafe extern "C" fn ask(
    connection: *const c_void,
    asked: *const Asked,
    into: *mut c_void,
    take: Take,
) -> c_int {
    // SAFETY: the caller's promise.
    let (connection, asked) = unsafe { (&*connection.cast::<Connection>(), &*asked) };
    // SAFETY: the caller's promise.
    let (name, value) = unsafe { (bytes(asked.name, asked.name_len), bytes(asked.value, asked.value_len)) };
    let hand_over = |data: &[u8]| {
        // SAFETY: the caller's promise; the bytes live until it returns.
        unsafe { take(into, data.as_ptr(), data.len()) }
    };
    let Some(operation) = Operation::from_number(asked.operation) else {
        hand_over(b"the store has no such operation");
        return FAILED;
    };
    match connection.ask(operation, name, value, Duration::from_millis(asked.wait_ms)) {
        Ok(Some(answer)) => {
            hand_over(&answer);
            ANSWERED
        }
        Ok(None) => NOTHING,
        Err(error) => {
            hand_over(error.to_string().as_bytes());
            FAILED
        }
    }
}

/// # Safety
/// `len` bytes at `data`, or none.
unsafe fn bytes<'a>(data: *const u8, len: usize) -> &'a [u8] {
    if len == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(data, len) }
}

/// # Safety
/// `connection` is that of a [`StoreHandle`], and is not used afterwards.
unsafe extern "C" fn release(connection: *const c_void) {
    // SAFETY: the pointer is that of `Arc::into_raw` in `StoreHandle::new`, dropped once.
    drop(unsafe { Arc::from_raw(connection.cast::<Connection>()) });
}
