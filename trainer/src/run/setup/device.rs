//! Sets up the threads, the matmul precision and the device of a rank's process. The compute dtype is decided
//! elsewhere.

use rlt_api::ValidatedJob;
use rlt_api::conflicts::ChosenDevice;
use rlt_api::resolved::{Choices, ResolvedSpec};
use rlt_api::spec;
use rlt_models::ModelConfig;
use rlt_parallel::{RankError, Ranks};
use rlt_plan::{Models, choices_for, memory_on_gpu};
use rlt_torch::cuda::{self, CudaStatus, Kernels};
use tch::Device;

use crate::observe::phases;
use crate::run::error::TrainError;

/// Fraction of a GPU's memory that may be in use without an error: contexts of this process and of displays.
const UNREMARKABLE_SHARE: f64 = 0.1;

/// Device that holds the tensors of a rank.
#[derive(Debug, PartialEq)]
pub(super) struct Placement {
    pub(super) device: Device,
    /// Reason for the choice of the CPU on a machine with a GPU.
    pub(super) warning: Option<String>,
}

/// Configures the process for the job and chooses the device of this rank. Collective.
///
/// # Errors
/// [`TrainError::NoCuda`] and [`TrainError::TooFewGpus`] for a job that requests GPUs, [`TrainError::Ranks`]
/// when a rank is lost.
pub(super) fn prepare(spec: &ResolvedSpec, ranks: &Ranks) -> Result<Placement, TrainError> {
    rlt_torch::set_num_threads(spec.workers.threads.map_or(ranks.cores(), |threads| threads as usize));
    rlt_torch::reuse_large_buffers();
    let precision = matmul_precision(spec.training.matmul_precision, rlt_torch::cpu_has_amx());
    rlt_torch::set_float32_matmul_precision(precision)?;
    rlt_torch::set_deterministic(spec.training.deterministic)?;
    let own = match spec.workers.device {
        spec::Device::Cpu => Placement { device: Device::Cpu, warning: None },
        wanted => {
            let chosen = choose(wanted, cuda::detect_cuda(), ranks.local_rank(), ranks.local_size())?;
            with_kernels(chosen, wanted)?
        }
    };
    let placement = match is_everywhere(own.device, ranks)? {
        false if own.device.is_cuda() => on_cpu(
            "another rank of this job has no GPU that it can use, and all compute on one kind of device",
        ),
        _ => own,
    };
    if let Some(warning) = &placement.warning {
        warn_loudly(warning);
    }
    phases::memory::watch(placement.device);
    Ok(placement)
}

/// Returns the value of `workers.device` that names `device`.
pub(super) fn spec_of(device: Device) -> spec::Device {
    if device.is_cuda() { spec::Device::Cuda } else { spec::Device::Cpu }
}

/// Returns the device of this process in the terms of the table of conflicts.
pub(super) fn chosen(device: Device) -> ChosenDevice {
    if device.is_cuda() { ChosenDevice::Cuda } else { ChosenDevice::Cpu }
}

/// Logs a warning between separator lines, so that it is not overlooked.
fn warn_loudly(warning: &str) {
    let line = "=".repeat(100);
    tracing::warn!("\n{line}\nTHIS RUN {warning}\n{line}");
}

fn on_cpu(cause: &str) -> Placement {
    let warning = format!(
        "COMPUTES ON THE CPU, although this machine has a GPU: {cause}. `rlt-trainer device` shows what is seen; with \
         spec.workers.device Cuda the job fails instead, with Cpu it uses no GPU"
    );
    Placement { device: Device::Cpu, warning: Some(warning) }
}

/// Refuses a GPU whose free memory is below the planned need of the job while another process uses it.
///
/// # Errors
/// [`TrainError::GpuTaken`].
pub(super) fn check_room(job: &ValidatedJob, model: &ModelConfig, device: Device) -> Result<(), TrainError> {
    let Device::Cuda(index) = device else { return Ok(()) };
    let models = Models { policy: Some(model.clone()), reward: Vec::new() };
    let Some(memory) = rlt_torch::device_memory(device)? else { return Ok(()) };
    let (free, total) = (memory.free_bytes, memory.total_bytes);
    let needed = memory_on_gpu(job, &models, total).map_or(0, |memory| memory.peak_device_bytes);
    room(index, needed, free, total)
}

fn room(index: usize, needed: u64, free: u64, total: u64) -> Result<(), TrainError> {
    let taken = total.saturating_sub(free);
    if needed > free && taken as f64 > UNREMARKABLE_SHARE * total as f64 {
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        return Err(TrainError::GpuTaken { index, free: gib(free), total: gib(total), needed: gib(needed) });
    }
    Ok(())
}

/// Returns the device-dependent choices, made for the smallest GPU of all ranks, because ranks gather weights
/// for the same passes. Collective.
///
/// # Errors
/// [`TrainError::Ranks`] when a rank is lost, [`TrainError::Kernel`] when the driver fails.
pub(super) fn choices(
    spec: &ResolvedSpec,
    model: &ModelConfig,
    device: Device,
    ranks: &Ranks,
) -> Result<Choices, TrainError> {
    let Some(memory) = rlt_torch::device_memory(device)? else {
        return Ok(choices_for(spec, Some(model), ChosenDevice::Cpu, None));
    };
    let smallest = -ranks.all_reduce_max(-(memory.total_bytes as i64))?;
    Ok(choices_for(spec, Some(model), ChosenDevice::Cuda, Some(smallest.unsigned_abs())))
}

fn matmul_precision(wanted: spec::MatmulPrecision, has_amx: bool) -> rlt_torch::MatmulPrecision {
    use spec::MatmulPrecision as Wanted;
    match wanted {
        // Without AMX, libtorch's "medium" is full fp32 by a faster library; with AMX it would be bfloat16.
        Wanted::Highest if !has_amx => rlt_torch::MatmulPrecision::Medium,
        Wanted::Highest => rlt_torch::MatmulPrecision::Highest,
        Wanted::High => rlt_torch::MatmulPrecision::High,
        Wanted::Medium => rlt_torch::MatmulPrecision::MediumEvenReduced,
    }
}

/// Chooses the device of rank `local_rank` of `local_size` on this machine. Two ranks never share a GPU: NCCL
/// cannot connect a GPU with itself.
fn choose(
    wanted: spec::Device,
    search: &CudaStatus,
    local_rank: usize,
    local_size: usize,
) -> Result<Placement, TrainError> {
    let num_gpus = search.num_gpus();
    if num_gpus >= local_size && wanted != spec::Device::Cpu {
        return Ok(Placement { device: Device::Cuda(local_rank), warning: None });
    }
    match wanted {
        spec::Device::Cuda if num_gpus > 0 => Err(TrainError::TooFewGpus { num_ranks: local_size, num_gpus }),
        spec::Device::Cuda => Err(TrainError::NoCuda { cause: search.to_string() }),
        spec::Device::Auto if num_gpus > 0 => Ok(on_cpu(&format!(
            "it has {num_gpus} GPU(s) for {local_size} ranks, and two ranks never share one"
        ))),
        spec::Device::Auto if search.has_unusable_gpu() => Ok(on_cpu(&search.to_string())),
        spec::Device::Auto | spec::Device::Cpu => Ok(Placement { device: Device::Cpu, warning: None }),
    }
}

/// Refuses a GPU that our kernels were not built for, before the run does any work; `Auto` then chooses the
/// CPU.
fn with_kernels(placement: Placement, wanted: spec::Device) -> Result<Placement, TrainError> {
    let Device::Cuda(index) = placement.device else { return Ok(placement) };
    match Kernels::load(index) {
        Ok(_) => Ok(placement),
        Err(source) if wanted == spec::Device::Auto => Ok(on_cpu(&source.to_string())),
        Err(source) => Err(TrainError::NoKernels { index, source }),
    }
}

/// Whether every rank has a GPU. Ranks exchange tensors, which must all be on the same kind of device.
/// Collective.
fn is_everywhere(own: Device, ranks: &Ranks) -> Result<bool, RankError> {
    let mut num_with_gpu = vec![f64::from(u8::from(own.is_cuda()))];
    ranks.all_reduce(&mut [&mut num_with_gpu])?;
    Ok(num_with_gpu[0] as usize == ranks.size())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use rlt_api::ExitCode;
    use rlt_tests::{choices, tiny_job_with};
    use rlt_torch::MatmulPrecision;
    use serde_json::json;

    use super::*;

    const GIB: u64 = 1 << 30;
    /// Environment variable of a child process in which a test may change process-wide compute settings.
    const OWN_PROCESS: &str = "RLT_TEST_OWN_PROCESS";

    fn with_gpus(num_gpus: usize) -> CudaStatus {
        if num_gpus == 0 { CudaStatus::NoGpu } else { CudaStatus::Found { num_gpus } }
    }

    fn broken() -> CudaStatus {
        CudaStatus::LibraryMissing { libraries: vec!["libcudnn.so.9".into()], message: "no such file".into() }
    }

    #[test]
    fn each_worker_of_a_machine_has_a_gpu_of_its_own_or_none_has() {
        for (wanted, num_gpus, (rank, size), expected) in [
            (spec::Device::Auto, 0, (0, 1), Device::Cpu),
            (spec::Device::Auto, 1, (0, 1), Device::Cuda(0)),
            (spec::Device::Auto, 8, (5, 8), Device::Cuda(5)),
            (spec::Device::Auto, 1, (0, 4), Device::Cpu),
            (spec::Device::Cpu, 8, (0, 1), Device::Cpu),
            (spec::Device::Cuda, 4, (3, 4), Device::Cuda(3)),
        ] {
            let placement = choose(wanted, &with_gpus(num_gpus), rank, size).unwrap();
            assert_eq!(placement.device, expected, "{wanted:?} {num_gpus} {rank} of {size}");
            let is_beside_gpu = wanted == spec::Device::Auto && num_gpus > 0 && expected == Device::Cpu;
            assert_eq!(placement.warning.is_some(), is_beside_gpu, "{wanted:?} {num_gpus} {rank} of {size}");
        }
    }

    #[test]
    fn too_few_gpus_are_reported_with_the_number_found() {
        let error = choose(spec::Device::Cuda, &with_gpus(3), 0, 4).unwrap_err();
        assert_eq!(
            error.to_string(),
            "spec.workers.device: Cuda was asked for; expected a GPU for each of the 4 ranks on this machine, libtorch \
             sees 3"
        );
        assert_eq!(error.exit_code(), ExitCode::BadConfig);
    }

    #[test]
    fn a_gpu_that_cannot_be_used_is_an_error_with_cuda_and_a_warning_with_auto() {
        let error = choose(spec::Device::Cuda, &broken(), 0, 1).unwrap_err();
        assert!(error.to_string().contains("libcudnn.so.9 does not load"), "{error}");
        assert_eq!(error.exit_code(), ExitCode::BadConfig, "starting again cannot help");
        let placement = choose(spec::Device::Auto, &broken(), 0, 1).unwrap();
        assert_eq!(placement.device, Device::Cpu);
        assert!(placement.warning.unwrap().contains("libcudnn.so.9 does not load"));
    }

    fn with_precision(name: &str) -> ValidatedJob {
        let job = tiny_job_with(json!({ "training": { "matmulPrecision": name } }));
        rlt_api::validate(&job.to_string()).unwrap()
    }

    #[test]
    fn every_precision_of_products_has_libtorchs_name_for_it_without_and_with_matrix_tiles() {
        let table = [
            ("Highest", [MatmulPrecision::Medium, MatmulPrecision::Highest]),
            ("High", [MatmulPrecision::High; 2]),
            ("Medium", [MatmulPrecision::MediumEvenReduced; 2]),
        ];
        assert_eq!(choices("spec.training.matmulPrecision"), table.map(|(name, _)| name));
        for (name, expected) in table {
            let wanted = with_precision(name).spec().training.matmul_precision;
            assert_eq!([false, true].map(|has_amx| matmul_precision(wanted, has_amx)), expected, "{name}");
        }
    }

    #[test]
    fn a_run_computes_products_in_the_precision_of_its_manifest() {
        if std::env::var_os(OWN_PROCESS).is_some() {
            let uses_tf32 = ["Highest", "High", "Medium", "Highest"].map(|name| {
                prepare(with_precision(name).spec(), &Ranks::alone()).unwrap();
                rlt_torch::cuda_multiplies_in_tf32().unwrap()
            });
            assert_eq!(uses_tf32, [false, true, true, false]);
            return;
        }
        let test = "run::setup::device::tests::a_run_computes_products_in_the_precision_of_its_manifest";
        let mut child = Command::new(std::env::current_exe().unwrap());
        let output = child.args([test, "--exact"]).env(OWN_PROCESS, "1").output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && printed.contains("1 passed"), "{output:?}");
    }

    #[test]
    fn a_gpu_filled_by_another_process_is_refused_and_a_small_one_is_not() {
        let error = room(1, 20 * GIB, 5 * GIB, 80 * GIB).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("GPU 1 has 5.0 of 80.0 GiB free") && text.contains("20.0 GiB"), "{text}");
        // Another node may work, so the operator starts the job again and prefers other nodes.
        assert_eq!(error.exit_code(), ExitCode::DeviceFailed);
        assert!(room(1, 20 * GIB, 30 * GIB, 80 * GIB).is_ok());
        assert!(room(1, 100 * GIB, 79 * GIB, 80 * GIB).is_ok());
    }
}
