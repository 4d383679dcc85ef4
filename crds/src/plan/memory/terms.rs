//! Terms of a phase: bytes with a name and the memory that they are in.

use super::{MemoryTerm, Place, on_gpu};
use crate::resolved::ResolvedSpec;

/// A term on the computing device.
pub(super) fn term(name: &'static str, bytes: u64) -> MemoryTerm {
    MemoryTerm { name, place: Place::Device, bytes }
}

/// A term on the host, also with GPUs.
pub(super) fn on_host(name: &'static str, bytes: u64) -> MemoryTerm {
    MemoryTerm { name, place: Place::Host, bytes }
}

/// A term that is resident for the whole run: on the device, or if it is offloaded on the host of a GPU, or
/// in a file with a CPU.
pub(super) fn kept(spec: &ResolvedSpec, name: &'static str, is_offloaded: bool, bytes: u64) -> MemoryTerm {
    match (is_offloaded, on_gpu(spec)) {
        (true, true) => on_host(name, bytes),
        (true, false) => term(name, 0),
        (false, _) => term(name, bytes),
    }
}
