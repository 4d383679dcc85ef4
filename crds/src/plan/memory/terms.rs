//! Constructors of memory terms: named bytes on the device or its host.

use super::{MemoryTerm, Place, on_gpu};
use crate::resolved::ResolvedSpec;

/// Returns a term on the compute device.
pub(super) fn term(name: &'static str, bytes: u64) -> MemoryTerm {
    MemoryTerm { name, place: Place::Device, bytes }
}

/// Returns a term on the host, also for jobs on GPUs.
pub(super) fn on_host(name: &'static str, bytes: u64) -> MemoryTerm {
    MemoryTerm { name, place: Place::Host, bytes }
}

/// Returns a term that is resident for the whole run: on the device, or if it is offloaded, on the host of a
/// GPU. What is offloaded on a CPU is in a file and takes 0 bytes.
pub(super) fn kept(spec: &ResolvedSpec, name: &'static str, is_offloaded: bool, bytes: u64) -> MemoryTerm {
    match (is_offloaded, on_gpu(spec)) {
        (true, true) => on_host(name, bytes),
        (true, false) => term(name, 0),
        (false, _) => term(name, bytes),
    }
}
