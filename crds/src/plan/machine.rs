//! The device of a rank, in the figures that decide fit and time: a GPU from the table in `gpus`, or a
//! measured machine. The figures are used elsewhere.

mod gpus;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use gpus::UnknownGpu;

use crate::spec::{Device, MatmulPrecision, Precision};

/// The label with a GPU's product name, as NVIDIA's device plugin and GPU feature discovery set it.
pub const PRODUCT_LABEL: &str = "nvidia.com/gpu.product";
/// The label with a GPU's memory in MiB, by the same.
pub const MEMORY_LABEL: &str = "nvidia.com/gpu.memory";

/// The device of one rank. Rates are the device's maxima; efficiencies are in the prediction of times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Machine {
    /// Its name.
    pub name: String,
    /// A GPU or a CPU.
    pub device: Device,
    /// Bytes of the device's memory; `None` where nothing bounds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Bytes that it reads from its memory in a second.
    pub memory_bytes_per_second: f64,
    /// Products of matrices in a second, a multiplication and an addition each counted.
    pub flops: Flops,
    /// Bytes that a rank sends to its neighbours in a second while it receives as many.
    pub peer_bytes_per_second: f64,
    /// Bytes between host and device in a second, one way.
    pub host_bytes_per_second: f64,
    /// Seconds that the host needs to start one operation.
    pub launch_seconds: f64,
}

/// FLOP/s of dense products of matrices.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Flops {
    /// In bfloat16 with sums in fp32.
    pub bf16: f64,
    /// In IEEE half with sums in fp32.
    pub fp16: f64,
    /// In TF32.
    pub tf32: f64,
    /// In fp32.
    pub fp32: f64,
}

impl Machine {
    /// A GPU by its name on the command line, such as `h100`.
    ///
    /// # Errors
    /// [`UnknownGpu`], with the names that are known.
    pub fn gpu(name: &str) -> Result<Self, UnknownGpu> {
        gpus::by_name(name)
    }

    /// The GPU of a product's name, as its driver or a node's label has it, such as `NVIDIA H100 80GB HBM3`.
    ///
    /// # Errors
    /// [`UnknownGpu`], with the names that are known.
    pub fn of_product(product: &str) -> Result<Self, UnknownGpu> {
        gpus::by_product(product)
    }

    /// The GPU that the labels of a node name; `None` where they name none.
    ///
    /// # Errors
    /// [`UnknownGpu`] for a product that is not in the table.
    pub fn of_node(labels: &BTreeMap<String, String>) -> Result<Option<Self>, UnknownGpu> {
        let Some(product) = labels.get(PRODUCT_LABEL) else { return Ok(None) };
        let mut machine = Self::of_product(product)?;
        // The driver's figure for this GPU, also for a MIG slice.
        let memory = labels.get(MEMORY_LABEL).and_then(|mebibytes| mebibytes.parse::<u64>().ok());
        machine.memory_bytes = memory.map(|mebibytes| mebibytes << 20).or(machine.memory_bytes);
        Ok(Some(machine))
    }

    /// FLOP/s of products in `precision`; of fp32 numbers as `matmul` allows.
    pub fn flops(&self, precision: Precision, matmul: MatmulPrecision) -> f64 {
        match (precision.on(self.device), matmul) {
            (Precision::Bf16, _) => self.flops.bf16,
            (Precision::Fp16, _) => self.flops.fp16,
            (_, MatmulPrecision::Highest) => self.flops.fp32,
            (_, MatmulPrecision::High | MatmulPrecision::Medium) => self.flops.tf32,
        }
    }
}
