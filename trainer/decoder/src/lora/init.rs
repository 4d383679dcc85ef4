//! Initial values of an adapter's two matrices; each projection draws from a stream of its own.

use rlt_api::spec::LoraInit;
use tch::Tensor;

use super::names::peft_names;
use crate::random::TensorRandom;

/// Draws A [rank, in] and B [out, rank], f32 on the CPU, for a projection with this name and size.
pub(super) fn matrices(
    init: LoraInit,
    rank: usize,
    seed: u64,
    projection: &str,
    [out_features, in_features]: [i64; 2],
) -> (Tensor, Tensor) {
    let num_rows = rank;
    let rank = rank as i64;
    let [name_a, name_b] = peft_names(projection);
    let mut random_a = TensorRandom::new(seed, &name_a);
    let num_a = num_rows * in_features as usize;
    let zero_b = || Tensor::zeros([out_features, rank], (tch::Kind::Float, tch::Device::Cpu));
    let shaped_a = |values: Vec<f32>| Tensor::from_slice(&values).reshape([rank, in_features]);
    match init {
        // kaiming_uniform with a = sqrt(5): gain sqrt(1/3), bound gain * sqrt(3 / in). With LoftQ, modules
        // that are not quantized keep this.
        LoraInit::Peft | LoraInit::Loftq => {
            (shaped_a(random_a.uniform(num_a, (in_features as f64).powf(-0.5))), zero_b())
        }
        LoraInit::Xavier => {
            let std = (2.0 / (in_features as f64 + rank as f64)).sqrt();
            (shaped_a(random_a.normal(num_a, std)), zero_b())
        }
        LoraInit::Gaussian => (shaped_a(random_a.normal(num_a, 1.0 / rank as f64)), zero_b()),
        LoraInit::Orthogonal => {
            let mut random_b = TensorRandom::new(seed, &name_b);
            orthogonal(&mut random_a, &mut random_b, [out_features, in_features, rank])
        }
    }
}

/// PEFT's `orthogonal_init`: rows of one orthogonal matrix are used alternately for A and B, so that B A is
/// zero up to rounding although neither is.
fn orthogonal(
    random_a: &mut TensorRandom,
    random_b: &mut TensorRandom,
    [out_features, in_features, rank]: [i64; 3],
) -> (Tensor, Tensor) {
    let half = rank / 2;
    let normal = |random: &mut TensorRandom, rows: i64, columns: i64| {
        Tensor::from_slice(&random.normal((rows * columns) as usize, 1.0)).reshape([rows, columns])
    };
    let (basis, _) = Tensor::linalg_qr(&normal(random_a, rank, rank), "reduced");
    let (odd, even) = (basis.slice(0, 0, rank, 2), basis.slice(0, 1, rank, 2));
    let a = normal(random_a, in_features, half).matmul(&odd).transpose(0, 1) / 10.0;
    let b = normal(random_b, half, out_features).transpose(0, 1).matmul(&even) / 10.0;
    (a.contiguous(), b.contiguous())
}
