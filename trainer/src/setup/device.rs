//! Threads, arithmetic and the device of a rank's process. Which numbers are computed on it is not decided
//! here.

use rlt_api::plan::Choices;
use rlt_api::plan::model_config::ModelConfig;
use rlt_api::resolved::ResolvedSpec;
use rlt_api::spec;
use tch::Device;

use crate::error::TrainError;
use crate::parallel::{RankError, Ranks};

/// Prepares the whole process for the job and says where its tensors live.
///
/// # Errors
/// [`TrainError::TooFewGpus`] for a job that asks for them, [`TrainError::Ranks`] when a rank is lost.
pub(super) fn prepare(spec: &ResolvedSpec, ranks: &Ranks) -> Result<Device, TrainError> {
    rlt_torch::set_num_threads(spec.workers.threads.map_or(ranks.cores(), |threads| threads as usize));
    rlt_torch::reuse_large_buffers();
    rlt_torch::set_float32_matmul_precision(matmul_precision(spec.training.matmul_precision))?;
    rlt_torch::set_deterministic(spec.training.deterministic)?;
    let sees_cuda = rlt_torch::load_cuda().unwrap_or(false) && tch::Cuda::is_available();
    let num_gpus = if sees_cuda { tch::Cuda::device_count().max(0) as usize } else { 0 };
    let own = device_of(spec.workers.device, num_gpus, (ranks.local_rank(), ranks.local_size()))?;
    Ok(if is_everywhere(own, ranks)? { own } else { Device::Cpu })
}

/// What the manifest leaves to the device, chosen for `device`.
pub(super) fn choices(spec: &ResolvedSpec, model: &ModelConfig, device: Device) -> Choices {
    let kind = if device.is_cuda() { spec::Device::Cuda } else { spec::Device::Cpu };
    Choices::new(spec, Some(model), kind, None)
}

fn matmul_precision(wanted: spec::MatmulPrecision) -> rlt_torch::MatmulPrecision {
    use spec::MatmulPrecision as Wanted;
    match wanted {
        // Without matrix tiles libtorch's "medium" is full fp32 by a faster library; with them it would be
        // bfloat16.
        Wanted::Highest if !rlt_torch::cpu_has_amx() => rlt_torch::MatmulPrecision::Medium,
        Wanted::Highest => rlt_torch::MatmulPrecision::Highest,
        Wanted::High => rlt_torch::MatmulPrecision::High,
        Wanted::Medium => rlt_torch::MatmulPrecision::MediumEvenReduced,
    }
}

/// The device of rank `local_rank` of the `local_size` on a machine with `num_gpus`. Two ranks never share a
/// GPU: NCCL connects none with itself.
fn device_of(
    wanted: spec::Device,
    num_gpus: usize,
    (local_rank, local_size): (usize, usize),
) -> Result<Device, TrainError> {
    let suffices = num_gpus >= local_size;
    match wanted {
        spec::Device::Auto | spec::Device::Cuda if suffices => Ok(Device::Cuda(local_rank)),
        spec::Device::Cuda => Err(TrainError::TooFewGpus { num_workers: local_size, num_gpus }),
        spec::Device::Auto | spec::Device::Cpu => Ok(Device::Cpu),
    }
}

/// Whether every rank has a GPU, as ranks exchange tensors that are all on one kind of device.
fn is_everywhere(own: Device, ranks: &Ranks) -> Result<bool, RankError> {
    let mut num_with_gpu = vec![f64::from(u8::from(own.is_cuda()))];
    ranks.sum(&mut [&mut num_with_gpu])?;
    Ok(num_with_gpu[0] as usize == ranks.size())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_worker_of_a_machine_has_a_gpu_of_its_own_or_none_has() {
        for (wanted, num_gpus, place, expected) in [
            (spec::Device::Auto, 0, (0, 1), Device::Cpu),
            (spec::Device::Auto, 1, (0, 1), Device::Cuda(0)),
            (spec::Device::Auto, 8, (5, 8), Device::Cuda(5)),
            (spec::Device::Auto, 1, (0, 4), Device::Cpu),
            (spec::Device::Cpu, 8, (0, 1), Device::Cpu),
            (spec::Device::Cuda, 4, (3, 4), Device::Cuda(3)),
        ] {
            assert_eq!(
                device_of(wanted, num_gpus, place).unwrap(),
                expected,
                "{wanted:?} {num_gpus} {place:?}"
            );
        }
    }

    #[test]
    fn too_few_gpus_are_named_with_what_is_there() {
        let error = device_of(spec::Device::Cuda, 1, (0, 4)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "spec.workers.device: Cuda was asked for; expected a GPU for each of the 4 workers on this machine, libtorch \
             sees 1"
        );
    }
}
