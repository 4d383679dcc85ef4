//! Table of GPUs by name. Memory is the total that `nvidia-smi` reports, all of which a process can allocate.
//! Rates are the vendor's dense figures, or half of its figures with sparsity if a source gives only those.

use rlt_api::spec::Device;

use super::{Flops, Machine};

/// Host time of one operation of libtorch on a GPU, from its call to the kernel's start: 4 to 8 microseconds
/// on present servers (NVIDIA, "Getting Started with CUDA Graphs"; PyTorch profiles agree).
const LAUNCH_SECONDS: f64 = 6e-6;

const MIB: u64 = 1 << 20;
const TERA: f64 = 1e12;
const GIGA: f64 = 1e9;

/// The requested GPU is in no row of the table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("GPU {name:?} is not known: expected one of {}", gpu_names())]
pub struct UnknownGpu {
    /// The requested name.
    pub name: String,
}

/// One row of the GPU table.
struct Gpu {
    name: &'static str,
    /// Substrings that the product name must all contain, in lower case without `-` and spaces. The first
    /// matching row wins, so special boards are listed before the boards whose names they contain.
    product: &'static [&'static str],
    memory_mib: u64,
    gigabytes_per_second: f64,
    /// TFLOP/s in bf16 and fp16 (equal on all of these), TF32 and fp32.
    teraflops: [f64; 3],
    /// Bandwidth in GB/s in one direction, to another GPU and to the host.
    links: [f64; 2],
}

impl Gpu {
    const fn new(
        name: &'static str,
        product: &'static [&'static str],
        memory_mib: u64,
        gigabytes_per_second: f64,
        teraflops: [f64; 3],
        links: [f64; 2],
    ) -> Self {
        Self { name, product, memory_mib, gigabytes_per_second, teraflops, links }
    }
}

/// Figures of each GPU. Sources count both directions of NVLink and PCIe, `links` one. In the rows' order:
///
/// - NVIDIA A100 datasheet (2021-06): 1555 GB/s, 312 / 156 / 19.5 TFLOP/s, NVLink 600 GB/s, PCIe 4.0 64 GB/s
/// - the same, SXM: 2039 GB/s
/// - NVIDIA L40S datasheet (2023-08): 864 GB/s, 362.05 / 183 / 91.6 TFLOP/s, no NVLink, PCIe 4.0 64 GB/s
/// - NVIDIA H100 PCIe product brief (2022) and architecture whitepaper, table 2: 2039 GB/s, 756 / 378 / 51.2
///   TFLOP/s, PCIe 5.0 128 GB/s; a bridge to one other board is not counted on
/// - NVIDIA H100 datasheet (2024), NVL: 3.9 TB/s, 1671 and 835 with sparsity, 60 TFLOP/s, a bridge of
///   600 GB/s
/// - NVIDIA GH200 datasheet (2024), 96 GB HBM3: 4 TB/s, the rest as H100 SXM, NVLink-C2C to the host 900 GB/s
/// - NVIDIA H100 datasheet (2023), SXM: 3.35 TB/s, 1979 and 989 with sparsity, 67 TFLOP/s, NVLink 900 GB/s,
///   PCIe 5.0 128 GB/s
/// - NVIDIA H200 datasheet (2024), NVL: 4.8 TB/s, 1671 and 835 with sparsity, 60 TFLOP/s, a bridge of
///   900 GB/s
/// - the same, SXM: the rest as H100
/// - NVIDIA HGX B200 datasheet (2025), one of eight: 62 TB/s, 36 and 18 PFLOP/s with sparsity, 600 TFLOP/s,
///   NVLink 1.8 TB/s, PCIe 5.0 128 GB/s
/// - NVIDIA Ada GPU architecture whitepaper (2023), table 2: 1008 GB/s, 165.2 with sums in fp32 / 82.6 / 82.6
///   TFLOP/s, no NVLink, PCIe 4.0 64 GB/s
#[rustfmt::skip]
const GPUS: [Gpu; 11] = [
    // Name     product              MiB      GB/s    bf16, TF32, fp32         to GPU, host
    Gpu::new("a100-40gb", &["a100", "40gb"], 40_960,  1555.0, [312.0, 156.0, 19.5],   [300.0, 32.0]),
    Gpu::new("a100-80gb", &["a100", "80gb"], 81_920,  2039.0, [312.0, 156.0, 19.5],   [300.0, 32.0]),
    Gpu::new("l40s",      &["l40s"],         46_068,  864.0,  [362.05, 183.0, 91.6],  [32.0, 32.0]),
    Gpu::new("h100-pcie", &["h100", "pcie"], 81_559,  2039.0, [756.0, 378.0, 51.2],   [64.0, 64.0]),
    Gpu::new("h100-nvl",  &["h100", "nvl"],  95_830,  3900.0, [835.5, 417.5, 60.0],   [300.0, 64.0]),
    Gpu::new("gh200",     &["gh200"],        97_871,  4000.0, [989.4, 494.7, 66.9],   [450.0, 450.0]),
    Gpu::new("h100",      &["h100"],         81_559,  3350.0, [989.4, 494.7, 66.9],   [450.0, 64.0]),
    Gpu::new("h200-nvl",  &["h200", "nvl"],  143_771, 4800.0, [835.5, 417.5, 60.0],   [450.0, 64.0]),
    Gpu::new("h200",      &["h200"],         143_771, 4800.0, [989.4, 494.7, 66.9],   [450.0, 64.0]),
    Gpu::new("b200",      &["b200"],         183_359, 7700.0, [2250.0, 1125.0, 75.0], [900.0, 64.0]),
    Gpu::new("rtx-4090",  &["rtx4090"],      24_564,  1008.0, [165.2, 82.6, 82.6],    [32.0, 32.0]),
];

impl Gpu {
    fn machine(&self) -> Machine {
        let [half, tf32, fp32] = self.teraflops.map(|teraflops| teraflops * TERA);
        let [peer, host] = self.links.map(|gigabytes| gigabytes * GIGA);
        Machine {
            name: self.name.to_owned(),
            device: Device::Cuda,
            memory_bytes: Some(self.memory_mib * MIB),
            memory_bytes_per_second: self.gigabytes_per_second * GIGA,
            flops: Flops { bf16: half, fp16: half, tf32, fp32 },
            peer_bytes_per_second: peer,
            host_bytes_per_second: host,
            launch_seconds: LAUNCH_SECONDS,
        }
    }
}

fn gpu_names() -> String {
    GPUS.map(|gpu| gpu.name).join(", ")
}

pub(super) fn by_name(name: &str) -> Result<Machine, UnknownGpu> {
    let gpu = GPUS.iter().find(|gpu| gpu.name.eq_ignore_ascii_case(name));
    gpu.map(Gpu::machine).ok_or_else(|| UnknownGpu { name: name.to_owned() })
}

/// Looks up a GPU by its product name, such as `NVIDIA-A100-SXM4-80GB`.
pub(super) fn by_product(product: &str) -> Result<Machine, UnknownGpu> {
    let plain: String =
        product.chars().filter(|char| char.is_ascii_alphanumeric()).collect::<String>().to_lowercase();
    let gpu = GPUS.iter().find(|gpu| gpu.product.iter().all(|part| plain.contains(part)));
    gpu.map(Gpu::machine).ok_or_else(|| UnknownGpu { name: product.to_owned() })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::{MEMORY_LABEL, PRODUCT_LABEL};
    use super::*;

    #[test]
    fn a_nodes_gpu_is_read_from_its_labels() {
        let of = |product: &str, mebibytes: Option<&str>| {
            let mut labels = BTreeMap::from([(PRODUCT_LABEL.to_owned(), product.to_owned())]);
            labels.extend(mebibytes.map(|memory| (MEMORY_LABEL.to_owned(), memory.to_owned())));
            Machine::of_node(&labels).map(|machine| machine.map(|one| (one.name, one.memory_bytes)))
        };
        for (product, name) in [
            ("NVIDIA-A100-SXM4-40GB", "a100-40gb"),
            ("NVIDIA-A100-SXM4-80GB", "a100-80gb"),
            ("NVIDIA-A100-80GB-PCIe", "a100-80gb"),
            ("NVIDIA-L40S", "l40s"),
            ("NVIDIA-H100-80GB-HBM3", "h100"),
            ("NVIDIA-H100-PCIe", "h100-pcie"),
            ("NVIDIA-H100-NVL", "h100-nvl"),
            ("NVIDIA-GH200-480GB", "gh200"),
            ("NVIDIA-H200", "h200"),
            ("NVIDIA-H200-NVL", "h200-nvl"),
            ("NVIDIA-B200", "b200"),
            ("NVIDIA-GeForce-RTX-4090-SHARED", "rtx-4090"),
        ] {
            let memory = Machine::gpu(name).unwrap().memory_bytes;
            assert_eq!(of(product, None), Ok(Some((name.to_owned(), memory))), "{product}");
            // The driver's form of the product name.
            assert_eq!(Machine::of_product(&product.replace('-', " ")).unwrap().name, name);
        }
        // A MIG slice counts with the memory that its driver reports.
        assert_eq!(
            of("NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", Some("9728")),
            Ok(Some(("h100".to_owned(), Some(9728 << 20))))
        );
        assert_eq!(Machine::of_node(&BTreeMap::new()), Ok(None));
        let unknown = of("Tesla-V100-SXM2-16GB", None).unwrap_err().to_string();
        assert!(unknown.starts_with("GPU \"Tesla-V100-SXM2-16GB\" is not known: expected one of a100-40gb,"));
    }

    #[test]
    fn every_gpu_is_found_by_its_own_name_and_an_unknown_one_lists_them() {
        for gpu in &GPUS {
            let machine = Machine::gpu(&gpu.name.to_uppercase()).unwrap();
            assert_eq!(machine, by_product(gpu.name).unwrap());
            assert!(machine.flops.bf16 > machine.flops.tf32 && machine.flops.tf32 >= machine.flops.fp32);
        }
        assert_eq!(
            Machine::gpu("h300").unwrap_err().to_string(),
            "GPU \"h300\" is not known: expected one of a100-40gb, a100-80gb, l40s, h100-pcie, h100-nvl, gh200, h100, \
             h200-nvl, h200, b200, rtx-4090"
        );
    }
}
