//! The peak of a GPU's memory in each phase of a step: of tensors, and with what libtorch's allocator keeps
//! of freed ones.

use std::cell::RefCell;
use std::collections::BTreeMap;

use rlt_core::metrics::Metrics;
use tch::Device;

use super::{SETUP, gib};

/// Most bytes of tensors, in GiB; a slash and the phase follow.
const PEAK: &str = "perf/max_memory_allocated_gb";
/// The same with freed blocks that the allocator keeps.
const RESERVED: &str = "perf/max_memory_reserved_gb";

thread_local! {
    static PEAKS: RefCell<Peaks> = RefCell::default();
}

/// The peaks of a device.
#[derive(Debug, Default)]
struct Peaks {
    /// `None` if it was not requested.
    device: Option<Device>,
    /// The active phases, the innermost last.
    under_way: Vec<&'static str>,
    /// Bytes since they were last reported.
    of_phases: BTreeMap<&'static str, Bytes>,
    of_run: Bytes,
}

/// The most bytes of tensors, and of all that the allocator took from the device.
#[derive(Clone, Copy, Debug, Default)]
struct Bytes {
    allocated: u64,
    reserved: u64,
}

impl Bytes {
    /// Peaks since the last reset; `None` where the device has none or cannot be asked.
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
    /// Counts the peak since the last call for the active phases, and resets it.
    fn settle(&mut self) {
        let Some(device) = self.device else { return };
        let Some(bytes) = Bytes::peak_of(device) else { return };
        self.of_run = self.of_run.max(bytes);
        if let Some(phase) = self.under_way.last() {
            let peak = self.of_phases.entry(phase).or_default();
            *peak = peak.max(bytes);
        }
        // Without it the next phase would report this one's peak; the run's own is right either way.
        let _ = rlt_torch::reset_peak_device_bytes(device);
    }
}

/// From now on phases of this thread report peaks of `device`.
pub(crate) fn watch(device: Device) {
    PEAKS.with_borrow_mut(|peaks| {
        *peaks = Peaks { device: device.is_cuda().then_some(device), ..Peaks::default() };
        peaks.under_way.push(SETUP);
    });
}

/// Does `work`, whose peak counts for `phase` and not for the one around it.
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

/// Peaks of the phases since the last call, and that of the run so far; none on a CPU.
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
