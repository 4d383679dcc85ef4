//! The peak of a GPU's memory in each phase of a step: of tensors, as libtorch's allocator counts them.

use std::cell::RefCell;
use std::collections::BTreeMap;

use rlt_core::metrics::Metrics;
use tch::Device;

use super::{SETUP, gib};

/// Most bytes of tensors, in GiB; a slash and the phase follow.
const PEAK: &str = "perf/max_memory_allocated_gb";

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
    of_phases: BTreeMap<&'static str, u64>,
    of_run: u64,
}

impl Peaks {
    /// Counts the peak since the last call for the active phases, and resets it.
    fn settle(&mut self) {
        let Some(device) = self.device else { return };
        let Ok(Some(bytes)) = rlt_torch::peak_device_bytes(device) else { return };
        self.of_run = self.of_run.max(bytes);
        if let Some(phase) = self.under_way.last() {
            let peak = self.of_phases.entry(phase).or_default();
            *peak = bytes.max(*peak);
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
        let named = of_phases.into_iter().map(|(phase, bytes)| (format!("{PEAK}/{phase}"), gib(bytes)));
        named.chain([(PEAK.to_owned(), gib(peaks.of_run))]).collect()
    })
}
