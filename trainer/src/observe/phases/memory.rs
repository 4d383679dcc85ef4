//! Peak GPU memory in each phase of a step: bytes of tensors, and bytes that libtorch's caching allocator
//! reserves.

use std::cell::RefCell;
use std::collections::BTreeMap;

use rlt_core::metrics::Metrics;
use tch::Device;

use super::{SETUP, gib};

/// Metric of the peak tensor memory, in GiB; per phase, a slash and the phase are appended.
const PEAK: &str = "perf/max_memory_allocated_gb";
/// Metric of the peak reserved memory, in GiB: tensors and the freed blocks that the allocator caches.
const RESERVED: &str = "perf/max_memory_reserved_gb";

thread_local! {
    static PEAKS: RefCell<Peaks> = RefCell::default();
}

/// Memory peaks of a device in the phases of this thread.
#[derive(Debug, Default)]
struct Peaks {
    /// Device that is measured; `None` on a CPU and before [`watch`].
    device: Option<Device>,
    /// Active phases, innermost last.
    under_way: Vec<&'static str>,
    /// Peak of each phase since the last report.
    of_phases: BTreeMap<&'static str, Bytes>,
    of_run: Bytes,
}

/// Peak bytes of tensors, and of all memory that the allocator has reserved on the device.
#[derive(Clone, Copy, Debug, Default)]
struct Bytes {
    allocated: u64,
    reserved: u64,
}

impl Bytes {
    /// Reads the peaks since the last reset; `None` if the device has no counters or cannot be queried.
    fn peak_of(device: Device) -> Option<Self> {
        let allocated = rlt_torch::peak_device_bytes(device).ok()??;
        let reserved = rlt_torch::peak_reserved_device_bytes(device).ok()??;
        Some(Self { allocated, reserved })
    }

    fn max(self, other: Self) -> Self {
        Self { allocated: self.allocated.max(other.allocated), reserved: self.reserved.max(other.reserved) }
    }
}

impl Peaks {
    /// Attributes the peak since the last call to the innermost active phase, and resets it.
    fn settle(&mut self) {
        let Some(device) = self.device else { return };
        let Some(bytes) = Bytes::peak_of(device) else { return };
        self.of_run = self.of_run.max(bytes);
        if let Some(phase) = self.under_way.last() {
            let peak = self.of_phases.entry(phase).or_default();
            *peak = peak.max(bytes);
        }
        // Without the reset the next phase would report this one's peak; the run's peak is right either way.
        let _ = rlt_torch::reset_peak_device_bytes(device);
    }
}

/// Starts to record the peaks of `device` for the phases of this thread.
pub(crate) fn watch(device: Device) {
    PEAKS.with_borrow_mut(|peaks| {
        *peaks = Peaks { device: device.is_cuda().then_some(device), ..Peaks::default() };
        peaks.under_way.push(SETUP);
    });
}

/// Runs `work` and attributes its peak to `phase` instead of the enclosing phase.
pub(crate) fn during<T>(phase: &'static str, work: impl FnOnce() -> T) -> T {
    PEAKS.with_borrow_mut(|peaks| {
        peaks.settle();
        // Work outside of phases after the first one, such as a checkpoint, does not belong to the setup.
        peaks.under_way.retain(|outer| *outer != SETUP);
        peaks.under_way.push(phase);
    });
    let done = work();
    PEAKS.with_borrow_mut(|peaks| {
        peaks.settle();
        peaks.under_way.pop();
    });
    done
}

/// Returns the peaks of the phases since the last call, and that of the run so far; empty on a CPU.
pub(super) fn metrics() -> Metrics {
    PEAKS.with_borrow_mut(|peaks| {
        peaks.settle();
        if peaks.device.is_none() {
            return Metrics::new();
        }
        let of_phases = std::mem::take(&mut peaks.of_phases);
        let named = of_phases.into_iter().map(|(phase, bytes)| (format!("/{phase}"), bytes));
        let all = named.chain([(String::new(), peaks.of_run)]);
        all.flat_map(|(phase, bytes)| {
            [(PEAK, bytes.allocated), (RESERVED, bytes.reserved)]
                .map(|(name, bytes)| (format!("{name}{phase}"), gib(bytes)))
        })
        .collect()
    })
}
