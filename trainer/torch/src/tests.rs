//! Equivalences: every kernel against the plain formula in ATen, on every instruction set this CPU runs.

mod attention;
mod collectives;
mod experts;
mod fused;
mod head;
pub(crate) mod kernels;
mod offload;
mod quantized;
mod services;
mod vocabulary_shard;

use std::sync::{Mutex, MutexGuard, PoisonError};
use tch::{Device, Kind, Tensor};

static ISA: Mutex<()> = Mutex::new(());

/// Runs `body` under each instruction set's kernels. The choice is global, so such tests run one after
/// another.
fn on_every_isa(body: impl Fn()) {
    let _guard: MutexGuard<'_, ()> = ISA.lock().unwrap_or_else(PoisonError::into_inner);
    for isa in ["baseline", "avx2", "avx512", "avx512_bf16", "amx"] {
        if crate::precision::select_kernels(isa) {
            body();
        }
    }
}

fn randn(shape: &[i64], seed: i64) -> Tensor {
    let mut state = seed as u64 ^ 0x9e37_79b9_7f4a_7c15;
    let num = shape.iter().product::<i64>() as usize;
    let mut uniform = move || {
        // splitmix64
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    };
    // Sums of uniforms are near enough to normal, and the same on every machine.
    let values: Vec<f32> =
        (0..num).map(|_| ((0..6).map(|_| uniform()).sum::<f64>() - 3.0) as f32 * 1.4).collect();
    Tensor::from_slice(&values).view(shape)
}

fn leaf(tensor: &Tensor) -> Tensor {
    tensor.detach().copy().set_requires_grad(true)
}

fn largest_difference(a: &Tensor, b: &Tensor) -> f64 {
    if a.numel() == 0 {
        return 0.0;
    }
    let wide = |t: &Tensor| t.to_kind(Kind::Double).to_device(Device::Cpu);
    (wide(a) - wide(b)).abs().max().double_value(&[])
}

/// Largest difference in units of the reference's largest element (or of 1, where that is smaller).
fn relative_difference(a: &Tensor, reference: &Tensor) -> f64 {
    let scale = if reference.numel() == 0 { 1.0 } else { reference.abs().max().double_value(&[]).max(1e-3) };
    largest_difference(a, reference) / scale
}
