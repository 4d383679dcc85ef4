//! The chunked head's memory, in a process of its own: the peak counts everything that the process allocates.

use tch::{Device, Kind, Tensor};

const VOCABULARY: i64 = 8192;
const MIB: u64 = 1 << 20;

/// Bytes by which a pass over `num_tokens` tokens raises the peak.
fn peak_of(num_tokens: i64, weight: &Tensor) -> Result<u64, rlt_torch::Error> {
    let hidden = Tensor::randn([num_tokens, weight.size()[1]], (Kind::Float, Device::Cpu));
    let targets: Vec<i64> = (0..num_tokens).map(|t| t % VOCABULARY).collect();
    let mut grad_weight = weight.zeros_like();
    rlt_torch::reset_peak_rss()?;
    let before = rlt_torch::peak_own_bytes()?;
    let mut per_chunk = |tokens: std::ops::Range<usize>, _: &[f32], _: &[f32]| {
        (vec![1.0; tokens.len()], vec![0.1; tokens.len()])
    };
    let grad = Some(&mut grad_weight);
    let grad_hidden =
        rlt_torch::head_forward_backward(&hidden, weight, &targets, 1.0, 64, grad, &mut per_chunk)?;
    assert_eq!(grad_hidden.size(), hidden.size());
    Ok(rlt_torch::peak_own_bytes()?.saturating_sub(before))
}

#[test]
fn peak_memory_does_not_grow_with_tokens_times_vocabulary() -> Result<(), rlt_torch::Error> {
    let weight = Tensor::randn([VOCABULARY, 16], (Kind::Float, Device::Cpu));
    // The first pass also pays for threads and libraries.
    peak_of(64, &weight)?;
    let (few, many) = (peak_of(64, &weight)?, peak_of(4096, &weight)?);
    let dense = 4096 * VOCABULARY as u64 * 4;
    assert_eq!(dense, 128 * MIB);
    // One chunk is 2 MiB; hidden states, their gradient and the allocator's granularity are added.
    assert!(
        many < few + 8 * MIB,
        "{many} bytes for 4096 tokens, {few} for 64; all logits would take {dense}"
    );
    Ok(())
}
