//! Checks that memory which is allocated and freed 200 times does not change the device's free memory.

use serde_json::json;
use tch::{Device, Kind, Tensor};

use super::{Failure, Finding, Report};

const NUM_CYCLES: usize = 200;
/// Number of cycles after which libtorch has cached the memory of a cycle.
const NUM_WARM: usize = 3;
/// Numbers of elements of a cycle's tensors: of the cache, of packed weights, and of a step's activations.
const SIZES: [i64; 3] = [1 << 20, 1 << 18, 3 << 16];

fn free_bytes() -> Result<u64, Failure> {
    Ok(rlt_torch::device_memory(Device::Cuda(0))?.ok_or("a GPU has memory")?.free_bytes)
}

pub(super) fn check(report: &mut Report<'_>) -> Result<(), Failure> {
    let mut after_warm = 0;
    for cycle in 0..NUM_CYCLES {
        let taken: Vec<Tensor> =
            SIZES.iter().map(|size| Tensor::ones([*size], (Kind::Float, Device::Cuda(0)))).collect();
        // The sum is read, so that the device has used the memory.
        let total: f64 = taken.iter().map(|tensor| tensor.sum(Kind::Double).double_value(&[])).sum();
        if total != SIZES.iter().sum::<i64>() as f64 {
            return Err(format!("cycle {cycle} read {total} from memory full of ones").into());
        }
        drop(taken);
        if cycle + 1 == NUM_WARM {
            after_warm = free_bytes()?;
        }
    }
    let lost = after_warm as i64 - free_bytes()? as i64;
    let figures = [("cycles", json!(NUM_CYCLES)), ("lostBytes", json!(lost))];
    report(Finding::new(lost <= 0, figures))
}
