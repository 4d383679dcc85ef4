//! The machine for which a job is planned: a GPU by its name, or this machine, as measured by the trainer.

use std::process::Command;

use anyhow::Context as _;
use rlt_api::ValidatedJob;
use rlt_api::spec::Device;
use rlt_plan::Machine;

use crate::args::PlanArgs;
use crate::run::find_trainer;

/// Returns the device that the job is planned for: a GPU with `--gpu`, else the manifest's, where `Auto` is
/// the CPU.
pub(super) fn device(args: &PlanArgs, job: &ValidatedJob) -> anyhow::Result<Device> {
    let device = job.spec().workers.device;
    let Some(name) = &args.gpu else { return Ok(device.without_machine()) };
    anyhow::ensure!(
        device != Device::Cpu,
        "plan for GPU {name}: spec.workers.device is Cpu; expected Cuda or Auto"
    );
    Ok(Device::Cuda)
}

/// Returns the requested machine; `None` if the flags request none.
pub(super) fn of(args: &PlanArgs, device: Device) -> anyhow::Result<Option<Machine>> {
    match &args.gpu {
        Some(name) => Ok(Some(Machine::gpu(name).context("plan for the GPU of --gpu")?)),
        None if args.measure => measured(args, device).map(Some),
        None => Ok(None),
    }
}

/// Runs the trainer to measure this machine.
fn measured(args: &PlanArgs, device: Device) -> anyhow::Result<Machine> {
    let trainer = find_trainer(args.trainer.as_deref())?;
    let device = match device {
        Device::Cuda => "cuda",
        Device::Auto | Device::Cpu => "cpu",
    };
    let mut command = Command::new(&trainer);
    let output = command.args(["measure", "--device", device]).output();
    let output = output.with_context(|| format!("start {}", trainer.display()))?;
    let said = || String::from_utf8_lossy(&output.stderr).trim().to_owned();
    anyhow::ensure!(output.status.success(), "measure this machine with {}: {}", trainer.display(), said());
    serde_json::from_slice(&output.stdout).context("read what the trainer has measured")
}
