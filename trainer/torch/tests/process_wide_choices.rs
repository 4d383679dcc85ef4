//! Process-wide state: settings (precision of float32 products, deterministic algorithms) and peak memory.
//! In a separate process, one test after the other, since a setting changes the bits of other threads'
//! products.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rlt_torch::MatmulPrecision;
use tch::{Kind, Tensor};

/// Locks the process-wide settings, so that the tests run one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static CHOICES: Mutex<()> = Mutex::new(());
    CHOICES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns values in [-1, 1] that are the same at each call: a sine at uneven steps.
fn numbers(shape: &[i64], seed: i64) -> Tensor {
    let steps = Tensor::arange(shape.iter().product::<i64>(), (Kind::Double, tch::Device::Cpu));
    ((steps * 1.7 + seed as f64 * 1000.0).square() * 0.01).sin().to_kind(Kind::Float).reshape(shape)
}

#[test]
fn medium_precision_stays_true_float32_or_is_not_taken() {
    let _alone = alone();
    let (a, b) = (numbers(&[65, 300], 1), numbers(&[130, 300], 2));
    let exact = a.to_kind(Kind::Double).matmul(&b.to_kind(Kind::Double).tr());
    let effective = rlt_torch::set_float32_matmul_precision(MatmulPrecision::Medium).unwrap();
    let off = ((a.matmul(&b.tr()) - &exact).abs().max() / exact.abs().max()).double_value(&[]);
    rlt_torch::set_float32_matmul_precision(MatmulPrecision::Highest).unwrap();
    assert_eq!(effective == MatmulPrecision::Highest, rlt_torch::cpu_has_amx());
    assert!(off < 2e-6, "products in {effective:?} are off by {off}");
}

/// A single setting for CPU and GPU would let the AMX tiles of the host's CPU decide about TF32 on its GPU.
#[test]
fn products_on_gpus_are_float32_unless_tf32_was_asked_for_whatever_the_cpu_does() {
    let _alone = alone();
    let tf32 = |precision: MatmulPrecision| {
        rlt_torch::set_float32_matmul_precision(precision).unwrap();
        rlt_torch::cuda_multiplies_in_tf32().unwrap()
    };
    let [highest, high, medium, reduced] = [
        MatmulPrecision::Highest,
        MatmulPrecision::High,
        MatmulPrecision::Medium,
        MatmulPrecision::MediumEvenReduced,
    ]
    .map(tf32);
    assert_eq!([highest, high, medium, reduced], [false, true, false, true]);
    let (a, b) = (numbers(&[65, 300], 1), numbers(&[130, 300], 2));
    let product = |precision: MatmulPrecision| {
        rlt_torch::set_float32_matmul_precision(precision).unwrap();
        a.matmul(&b.tr())
    };
    // Without AMX both settings compute float32 by the same library, so the CPU's own setting is libtorch's
    // "medium".
    if !rlt_torch::cpu_has_amx() {
        assert_eq!(product(MatmulPrecision::Medium), product(MatmulPrecision::MediumEvenReduced));
    }
    rlt_torch::set_float32_matmul_precision(MatmulPrecision::Highest).unwrap();
}

#[test]
fn deterministic_algorithms_are_chosen_and_give_the_same_bits_twice() {
    let _alone = alone();
    let pass = || {
        let (hidden, weight) = (numbers(&[300, 64], 1), numbers(&[700, 64], 2).set_requires_grad(true));
        let index = Tensor::from_slice(&(0..300).map(|at| at * 7 % 50).collect::<Vec<i64>>());
        let logits = hidden.matmul(&weight.tr());
        let summed = Tensor::zeros([50, 700], (Kind::Float, tch::Device::Cpu)).index_add(0, &index, &logits);
        summed.log_softmax(-1, Kind::Float).square().sum(Kind::Float).backward();
        (summed.detach(), weight.grad())
    };
    let (free, free_grad) = pass();
    rlt_torch::set_deterministic(true).unwrap();
    assert!(rlt_torch::is_deterministic());
    let workspace = std::env::var("CUBLAS_WORKSPACE_CONFIG").unwrap();
    assert!([":4096:8", ":16:8"].contains(&workspace.as_str()), "{workspace}");
    let ((one, one_grad), (other, other_grad)) = (pass(), pass());
    rlt_torch::set_deterministic(false).unwrap();
    assert!(!rlt_torch::is_deterministic());
    assert!(one == other && one_grad == other_grad, "two runs differ");
    assert!(one == free && one_grad == free_grad, "a CPU always is deterministic");
}

#[test]
fn the_peak_covers_all_used_memory() {
    let _alone = alone();
    rlt_torch::reuse_large_buffers();
    rlt_torch::reset_peak_rss().unwrap();
    let before = rlt_torch::peak_own_bytes().unwrap();
    let big = Tensor::ones([32 << 20], (Kind::Float, tch::Device::Cpu));
    drop(big);
    let peak = rlt_torch::peak_own_bytes().unwrap();
    assert!(peak >= before + (100 << 20), "{peak} after {before}");
    assert!(rlt_torch::peak_rss_bytes().unwrap() >= peak);
    rlt_torch::release_free_memory();
}

/// A mapped file stands for a library, and unmapping it for the kernel's reclaim of its pages.
#[test]
fn reclaimed_file_pages_do_not_count_as_own_memory() {
    const LEN: u64 = 64 << 20;
    let _alone = alone();
    // In the target folder: pages of a file in tmpfs are not file-backed.
    let file = tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    file.set_len(LEN).unwrap();
    rlt_torch::reset_peak_rss().unwrap();
    let before = rlt_torch::peak_own_bytes().unwrap();
    // SAFETY: no other process can open this unnamed file.
    let pages = unsafe { memmap2::Mmap::map(&file) }.unwrap();
    assert_eq!(pages.iter().step_by(4096).map(|byte| u64::from(*byte)).sum::<u64>(), 0);
    assert!(rlt_torch::rss_bytes().unwrap() >= LEN, "the pages are not resident");
    rlt_torch::settle_peak_memory().unwrap();
    drop(pages);
    let raised_by = rlt_torch::peak_own_bytes().unwrap().saturating_sub(before);
    assert!(raised_by < LEN / 2, "{raised_by} bytes more after {LEN} bytes of a file were reclaimed");
    // The peak of all resident memory includes them; allocated memory counts for both peaks.
    assert!(rlt_torch::peak_rss_bytes().unwrap() >= LEN);
    let own = std::hint::black_box(vec![1_u8; LEN as usize]);
    rlt_torch::settle_peak_memory().unwrap();
    drop(own);
    let raised_by = rlt_torch::peak_own_bytes().unwrap().saturating_sub(before);
    assert!((LEN * 7 / 8..LEN * 3 / 2).contains(&raised_by), "{raised_by} bytes for {LEN} allocated");
}
