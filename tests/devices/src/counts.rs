//! The driver's counts of a process: copies, launches, waits and memory, from its report.

use std::io;
use std::path::Path;

use serde_json::Value;

/// Copies, launches and waits of one process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Copies from the host to a device.
    pub host_to_device: u64,
    /// Copies from a device to the host.
    pub device_to_host: u64,
    /// Copies on a device or between two.
    pub device_to_device: u64,
    /// Kernels and operators that were launched one by one.
    pub launches: u64,
    /// Graphs that were launched.
    pub graph_launches: u64,
    /// Moments at which the host was kept until a device was done.
    pub waits: u64,
    /// Bytes that went to a device.
    pub bytes_host_to_device: u64,
    /// Bytes copied from a device.
    pub bytes_device_to_host: u64,
    /// Bytes on devices.
    pub bytes_device_to_device: u64,
    /// The most that was taken of each device's memory at once.
    pub peak_bytes: Vec<u64>,
    /// Peak of each device's reserved memory: allocated memory and the free blocks of libtorch's allocator.
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
