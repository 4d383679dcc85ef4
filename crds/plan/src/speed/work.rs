//! Roofline of a phase: converts bytes, FLOP and exchanges to seconds with stated efficiencies.

use rlt_api::spec::{Device, MatmulPrecision, Precision};
use serde::Serialize;

use crate::machine::Machine;

/// Kinds of work with different efficiencies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Matrix products of many rows: log-probs and updates, with attention, norms and losses between the
    /// products.
    Products,
    /// Matrix products of few rows, without gradients: prefill and decode.
    Sampling,
    /// Memory traffic without products worth counting.
    Stream,
}

/// The limit that dominates the time of a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Bound {
    /// FLOP/s of matrix products.
    Compute,
    /// Bandwidth of the device's memory.
    Memory,
    /// Time of the host to start operations.
    Launches,
    /// Bandwidth between workers.
    Exchange,
    /// Bandwidth between device and host.
    Host,
}

/// Fractions of a machine's limits that a kind of work reaches.
struct Efficiency {
    flops: f64,
    bytes: f64,
}

/// Returns the efficiencies of a kind of work. GPU: training of dense models with flash attention reaches 0.4
/// to 0.6 of the dense bf16 peak in published runs (PaLM, Llama 3, torchtitan), streaming kernels 0.8 to 0.9
/// of the memory bandwidth. CPU: medians over the 135M shape's benchmarks in `trainer/benches/reports`, which
/// also measure the machine's limits.
fn efficiency(device: Device, kind: Kind) -> Efficiency {
    let (flops, bytes) = match (device, kind) {
        (Device::Cuda, Kind::Products) => (0.5, 0.8),
        (Device::Cuda, Kind::Sampling | Kind::Stream) => (0.6, 0.8),
        (_, Kind::Products) => (0.75, 0.8),
        (_, Kind::Sampling | Kind::Stream) => (0.8, 0.8),
    };
    Efficiency { flops, bytes }
}

/// Precision of matrix products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ComputePrecision {
    /// Dtype of the operands.
    pub(super) dtype: Precision,
    /// Whether products in fp32 may use TF32.
    pub(super) matmul: MatmulPrecision,
}

/// Operations and bytes of one rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Work {
    /// FLOP of matrix products.
    pub(super) products: f64,
    /// Precision of `products`.
    pub(super) numbers: ComputePrecision,
    /// Bytes that the device reads from and writes to its memory.
    pub(super) bytes: f64,
    /// Number of operations that the host starts.
    pub(super) operations: f64,
    /// Bytes that are sent to other workers.
    pub(super) exchanged: f64,
    /// Bytes that are copied between device and host.
    pub(super) moved: f64,
    /// Seconds of additional host work, while the device waits.
    pub(super) host_seconds: f64,
}

impl Work {
    /// Adds later work in the same dtype.
    pub(super) fn and(self, next: Self) -> Self {
        Self {
            products: self.products + next.products,
            numbers: self.numbers,
            bytes: self.bytes + next.bytes,
            operations: self.operations + next.operations,
            exchanged: self.exchanged + next.exchanged,
            moved: self.moved + next.moved,
            host_seconds: self.host_seconds + next.host_seconds,
        }
    }

    pub(super) fn in_numbers(numbers: ComputePrecision) -> Self {
        let none = 0.0;
        Self {
            products: none,
            numbers,
            bytes: none,
            operations: none,
            exchanged: none,
            moved: none,
            host_seconds: none,
        }
    }

    pub(super) fn flop(&self) -> f64 {
        self.products
    }

    /// Returns the seconds and the dominant limit. A GPU overlaps memory access, products, communication and
    /// launches, so the longest decides. On a CPU they are added.
    pub(super) fn seconds(&self, machine: &Machine, kind: Kind) -> (f64, Bound) {
        let efficiency = efficiency(machine.device, kind);
        let peak = machine.flops(self.numbers.dtype, self.numbers.matmul);
        let parts = [
            (self.products / (peak * efficiency.flops), Bound::Compute),
            (self.bytes / (machine.memory_bytes_per_second * efficiency.bytes), Bound::Memory),
            (self.operations * machine.launch_seconds, Bound::Launches),
            (self.exchanged / (machine.peer_bytes_per_second * efficiency.bytes), Bound::Exchange),
            (self.moved / (machine.host_bytes_per_second * efficiency.bytes), Bound::Host),
        ];
        let (longest, bound) = parts
            .into_iter()
            .fold((0.0, Bound::Compute), |most, part| if part.0 > most.0 { part } else { most });
        let seconds =
            if machine.device == Device::Cuda { longest } else { parts.iter().map(|part| part.0).sum() };
        (seconds + self.host_seconds, bound)
    }
}
