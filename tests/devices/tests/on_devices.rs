//! Tests on emulated devices: the devices themselves, the operators that only CUDA has, collectives
//! between processes, and whole trainings. Each test has processes of its own.

#![expect(clippy::unwrap_used, reason = "a test panics where it fails")]

#[path = "on_devices/asked.rs"]
mod asked;
#[path = "on_devices/attention.rs"]
mod attention;
#[path = "on_devices/trainings/combinations.rs"]
mod combinations;
#[path = "../../tests/combinations/jobs.rs"]
mod combined_jobs;
#[path = "on_devices/device.rs"]
mod device;
#[path = "on_devices/experts.rs"]
mod experts;
#[path = "on_devices/found.rs"]
mod found;
#[path = "on_devices/gpu_check.rs"]
mod gpu_check;
#[path = "on_devices/gpu_check_by_name.rs"]
mod gpu_check_by_name;
#[path = "on_devices/gpu_report.rs"]
mod gpu_report;
#[path = "on_devices/head.rs"]
mod head;
#[path = "on_devices/host_work.rs"]
mod host_work;
#[path = "on_devices/kernels.rs"]
mod kernels;
#[path = "on_devices/memory.rs"]
mod memory;
#[path = "on_devices/nccl.rs"]
mod nccl;
#[path = "on_devices/passes.rs"]
mod passes;
#[path = "on_devices/trainings/plan.rs"]
mod plan;
#[path = "on_devices/process.rs"]
mod process;
#[path = "on_devices/trainings/quantized.rs"]
mod quantized;
#[path = "on_devices/trainings/run.rs"]
mod run;
#[path = "on_devices/trainings/trainings.rs"]
mod trainings;
#[path = "on_devices/weights.rs"]
mod weights;
