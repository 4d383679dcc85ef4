//! The driver's counts of a process: copies, launches, waits and memory, from its report.

use std::io;
use std::path::Path;

use serde_json::Value;

/// Copies, launches and waits of one process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of copies from the host to a device.
    pub host_to_device: u64,
    /// Number of copies from a device to the host.
    pub device_to_host: u64,
    /// Number of copies on a device or between two devices.
    pub device_to_device: u64,
    /// Number of kernels and operators that were launched outside of graphs.
    pub launches: u64,
    /// Number of graphs that were launched.
    pub graph_launches: u64,
    /// Number of times that the host waited for a device.
    pub waits: u64,
    /// Number of bytes that were copied to a device.
    pub bytes_host_to_device: u64,
    /// Number of bytes that were copied from a device.
    pub bytes_device_to_host: u64,
    /// Number of bytes that were copied on a device or between two devices.
    pub bytes_device_to_device: u64,
    /// Peak of each device's allocated memory, in bytes.
    pub peak_bytes: Vec<u64>,
    /// Peak of each device's reserved memory, in bytes: allocated memory and the free blocks of libtorch's
    /// allocator.
    pub peak_reserved_bytes: Vec<u64>,
}

impl Counts {
    /// Reads the counts that a process has written to the file of `RLT_STAND_IN_REPORT`.
    ///
    /// # Errors
    /// When there is no such file, or it holds something else.
    pub fn read(path: &Path) -> io::Result<Self> {
        let report: Value = serde_json::from_str(&std::fs::read_to_string(path)?)?;
        let number = |name: &str| report[name].as_u64().ok_or_else(|| io::Error::other(format!("no {name}")));
        let peaks = |name: &str| {
            let of_devices = report[name].as_array().map(Vec::as_slice).unwrap_or_default();
            of_devices.iter().filter_map(Value::as_u64).collect()
        };
        Ok(Self {
            host_to_device: number("host_to_device")?,
            device_to_host: number("device_to_host")?,
            device_to_device: number("device_to_device")?,
            launches: number("launches")?,
            graph_launches: number("graph_launches")?,
            waits: number("waits")?,
            bytes_host_to_device: number("bytes_host_to_device")?,
            bytes_device_to_host: number("bytes_device_to_host")?,
            bytes_device_to_device: number("bytes_device_to_device")?,
            peak_bytes: peaks("peak_bytes"),
            peak_reserved_bytes: peaks("peak_reserved_bytes"),
        })
    }
}
