//! Device of a rank, in the figures that decide fit and time: a GPU from the table in `gpus`, or a measured
//! machine. Other modules compute with the figures.

mod gpus;

use std::collections::BTreeMap;

use rlt_api::spec::{Device, MatmulPrecision, Precision};
use serde::{Deserialize, Serialize};

pub use gpus::UnknownGpu;

/// Node label with a GPU's product name, as NVIDIA's device plugin and GPU feature discovery set it.
pub const PRODUCT_LABEL: &str = "nvidia.com/gpu.product";
/// Node label with a GPU's memory in MiB, as NVIDIA's device plugin and GPU feature discovery set it.
pub const MEMORY_LABEL: &str = "nvidia.com/gpu.memory";

/// Device of one rank. Rates are the device's maxima; the predictor of times applies efficiencies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Machine {
    /// Name of the machine, such as `h100`.
    pub name: String,
    /// Whether the device is a GPU or a CPU.
    pub device: Device,
    /// Bytes of the device's memory; `None` where nothing bounds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Memory bandwidth of the device in bytes per second.
    pub memory_bytes_per_second: f64,
    /// Peak FLOP/s of matrix products; a multiplication and an addition count separately.
    pub flops: Flops,
    /// Bytes that a rank sends to its peers in a second while it receives as many.
    pub peer_bytes_per_second: f64,
    /// Bytes per second between host and device, in one direction.
    pub host_bytes_per_second: f64,
    /// Seconds that the host needs to start one operation.
    pub launch_seconds: f64,
}

/// Peak FLOP/s of dense matrix products, by dtype.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Flops {
    /// FLOP/s in bfloat16 with fp32 accumulation.
    pub bf16: f64,
    /// FLOP/s in IEEE half precision with fp32 accumulation.
    pub fp16: f64,
    /// FLOP/s in TF32.
    pub tf32: f64,
    /// FLOP/s in fp32.
    pub fp32: f64,
}

impl Machine {
    /// Looks up a GPU by its name on the command line, such as `h100`.
    ///
    /// # Errors
    /// [`UnknownGpu`], with the names that are known.
    pub fn gpu(name: &str) -> Result<Self, UnknownGpu> {
        gpus::by_name(name)
    }

    /// Looks up a GPU by its product name from the driver or a node label, such as `NVIDIA H100 80GB HBM3`.
    ///
    /// # Errors
    /// [`UnknownGpu`], with the names that are known.
    pub fn of_product(product: &str) -> Result<Self, UnknownGpu> {
        gpus::by_product(product)
    }

    /// Returns the GPU that a node's labels name; `None` without a product label.
    ///
    /// # Errors
    /// [`UnknownGpu`] for a product that is not in the table.
    pub fn of_node(labels: &BTreeMap<String, String>) -> Result<Option<Self>, UnknownGpu> {
        let Some(product) = labels.get(PRODUCT_LABEL) else { return Ok(None) };
        let mut machine = Self::of_product(product)?;
        // The label has the driver's figure for the actual device, which is also right for MIG slices.
        let memory = labels.get(MEMORY_LABEL).and_then(|mebibytes| mebibytes.parse::<u64>().ok());
        machine.memory_bytes = memory.map(|mebibytes| mebibytes << 20).or(machine.memory_bytes);
        Ok(Some(machine))
    }

    /// Returns the peak FLOP/s of products in `precision`; for fp32 `matmul` decides whether TF32 may be
    /// used.
    pub fn flops(&self, precision: Precision, matmul: MatmulPrecision) -> f64 {
        match (precision.on(self.device), matmul) {
            (Precision::Bf16, _) => self.flops.bf16,
            (Precision::Fp16, _) => self.flops.fp16,
            (_, MatmulPrecision::Highest) => self.flops.fp32,
            (_, MatmulPrecision::High | MatmulPrecision::Medium) => self.flops.tf32,
        }
    }
}
