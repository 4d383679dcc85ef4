//! A client of c10d's TCP store: small values under names, shared by all ranks. What ranks say to each other through
//! it is decided in `rendezvous` and `pulse`.

use std::ffi::{CString, NulError, c_void};
use std::net::SocketAddr;
use std::time::Duration;

use super::border;
use crate::Error;
use crate::border::check;

/// A failed act on the store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A name that can not be sent.
    #[error("a name in the store must not hold a NUL byte")]
    Name(#[from] NulError),
    /// A value that is not what this rank expects under that name.
    #[error("the store holds {got:?} under {name}, expected {expected}")]
    Value {
        /// The name.
        name: String,
        /// What was expected.
        expected: &'static str,
        /// What is there.
        got: String,
    },
    /// The connection failed, or what was asked for did not come in time.
    #[error("the store does not answer")]
    Lost(#[source] Error),
}

/// A connection to the store; for one thread, see [`Store::try_clone`].
#[derive(Debug)]
pub struct Store {
    pointer: *mut c_void,
    port: u16,
}

// SAFETY: the client behind the pointer guards its connection by a mutex and belongs to no thread.
unsafe impl Send for Store {}

impl Store {
    /// Serves a store on all addresses at `port` (0 for any free one) until it is dropped, and connects to it.
    ///
    /// # Errors
    /// When the port is taken.
    pub fn serve(port: u16, timeout: Duration) -> Result<Self, StoreError> {
        Self::open("localhost", port, true, timeout)
    }

    /// Connects to the store at `address`. An answer that does not come within `timeout` is an error.
    ///
    /// # Errors
    /// When nobody answers.
    pub fn connect(address: SocketAddr, timeout: Duration) -> Result<Self, StoreError> {
        Self::open(&address.ip().to_string(), address.port(), false, timeout)
    }

    fn open(host: &str, mut port: u16, is_server: bool, timeout: Duration) -> Result<Self, StoreError> {
        let host = CString::new(host)?;
        let mut pointer = std::ptr::null_mut();
        // SAFETY: a NUL-terminated host, a port to read and write, and a place for the result.
        let outcome = unsafe {
            border::rlt_store_connect(
                host.as_ptr(),
                &mut port,
                is_server,
                milliseconds(timeout),
                &mut pointer,
            )
        };
        check("connecting to the store", outcome).map_err(StoreError::Lost)?;
        Ok(Self { pointer, port })
    }

    /// A connection of its own for another thread.
    ///
    /// # Errors
    /// When the store does not answer.
    pub fn try_clone(&self) -> Result<Self, StoreError> {
        let mut pointer = std::ptr::null_mut();
        // SAFETY: `pointer` is a live store for as long as `self` is.
        let outcome = unsafe { border::rlt_store_clone(self.pointer, &mut pointer) };
        check("connecting to the store", outcome).map_err(StoreError::Lost)?;
        Ok(Self { pointer, port: self.port })
    }

    /// The port it is served at.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Puts `value` under `name`.
    ///
    /// # Errors
    /// When the store does not answer.
    pub fn set(&self, name: &str, value: &str) -> Result<(), StoreError> {
        let name = CString::new(name)?;
        // SAFETY: a NUL-terminated name and as many bytes as said.
        let outcome =
            unsafe { border::rlt_store_set(self.pointer, name.as_ptr(), value.as_ptr(), value.len()) };
        check("writing to the store", outcome).map_err(StoreError::Lost)
    }

    /// Puts `value` under `name` unless something is there already; what is there afterwards.
    ///
    /// # Errors
    /// When the store does not answer.
    pub fn set_first(&self, name: &str, value: &str) -> Result<String, StoreError> {
        let name = CString::new(name)?;
        self.bytes("writing to the store", |out, len| {
            // SAFETY: a NUL-terminated name, as many bytes as said, and places for the answer.
            unsafe {
                border::rlt_store_compare_set(
                    self.pointer,
                    name.as_ptr(),
                    value.as_ptr(),
                    value.len(),
                    out,
                    len,
                )
            }
        })
    }

    /// Adds `amount` to the number under `name`, which begins at 0; the sum.
    ///
    /// # Errors
    /// When the store does not answer.
    pub fn add(&self, name: &str, amount: i64) -> Result<i64, StoreError> {
        let name = CString::new(name)?;
        let mut sum = 0;
        // SAFETY: a NUL-terminated name and a place for the sum.
        let outcome = unsafe { border::rlt_store_add(self.pointer, name.as_ptr(), amount, &mut sum) };
        check("counting in the store", outcome).map_err(StoreError::Lost)?;
        Ok(sum)
    }

    /// What is under `name` now.
    ///
    /// # Errors
    /// When the store does not answer.
    pub fn get(&self, name: &str) -> Result<Option<String>, StoreError> {
        let name = CString::new(name)?;
        let mut found = false;
        // SAFETY: a NUL-terminated name and a place for the answer.
        let outcome = unsafe { border::rlt_store_has(self.pointer, name.as_ptr(), &mut found) };
        check("reading from the store", outcome).map_err(StoreError::Lost)?;
        if !found {
            return Ok(None);
        }
        let value = self.bytes("reading from the store", |out, len| {
            // SAFETY: a NUL-terminated name and places for the answer.
            unsafe { border::rlt_store_get(self.pointer, name.as_ptr(), out, len) }
        })?;
        Ok(Some(value))
    }

    fn bytes(
        &self,
        act: &'static str,
        call: impl FnOnce(*mut *mut u8, *mut usize) -> crate::border::Outcome,
    ) -> Result<String, StoreError> {
        let (mut data, mut len) = (std::ptr::null_mut(), 0);
        check(act, call(&mut data, &mut len)).map_err(StoreError::Lost)?;
        // SAFETY: without an error text there are `len` bytes at `data`, which are ours to free, once.
        let value = unsafe {
            let value = String::from_utf8_lossy(std::slice::from_raw_parts(data, len)).into_owned();
            border::rlt_free_bytes(data);
            value
        };
        Ok(value)
    }

    /// The pointer that C++ borrows.
    pub(super) fn raw(&self) -> *mut c_void {
        self.pointer
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // SAFETY: the store was made by `rlt_store_connect` or `rlt_store_clone` and is freed once, here.
        unsafe { border::rlt_store_free(self.pointer) }
    }
}

/// For C++: whole milliseconds, at least one.
pub(super) fn milliseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX / 2).max(1)
}
