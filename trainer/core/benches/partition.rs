//! Time to assign sequences to ranks and to pack them into micro-batches, at the sizes of real steps.
//!
//! Run with `cargo bench -p rlt-core --bench partition`. verl's own function, Python on one core of the same
//! machine, was measured at 7.6 ms for 512 sequences over 8 ranks, 100 ms for 512 over 64 and 707 ms for 4096
//! over 64.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use rlt_core::packing::pack;
use rlt_core::partition::{PartSizes, karmarkar_karp, workload};
use rlt_core::permutation::splitmix64;

const HIDDEN_SIZE: usize = 4096;

/// Lengths between 64 and 8192 tokens, short ones more often.
fn lens(num_sequences: usize) -> Vec<usize> {
    let unit = |sequence: usize| splitmix64(7, sequence as u64) as f64 / u64::MAX as f64;
    (0..num_sequences).map(|sequence| (64.0 * (128.0_f64.powf(unit(sequence)))) as usize).collect()
}

fn spread_over_ranks(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("karmarkar_karp");
    for (num_sequences, num_ranks) in [(512, 8), (512, 64), (4096, 8), (4096, 64)] {
        let workloads: Vec<u64> = lens(num_sequences).iter().map(|len| workload(*len, HIDDEN_SIZE)).collect();
        for sizes in [PartSizes::Free, PartSizes::Equal] {
            let id = BenchmarkId::new(format!("{sizes:?}"), format!("{num_sequences} over {num_ranks}"));
            group.bench_function(id, |bench| {
                bench.iter(|| karmarkar_karp(black_box(&workloads), num_ranks, sizes));
            });
        }
    }
    group.finish();
}

fn pack_micro_batches(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("pack");
    for num_samples in [512, 4096] {
        let lens = lens(num_samples);
        group.bench_function(BenchmarkId::from_parameter(num_samples), |bench| {
            bench.iter(|| pack(black_box(&lens), 16_384, HIDDEN_SIZE));
        });
    }
    group.finish();
}

criterion_group!(benches, spread_over_ranks, pack_micro_batches);
criterion_main!(benches);
