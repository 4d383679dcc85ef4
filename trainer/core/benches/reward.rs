//! Benchmark of the MATH-style reward: completions judged per second on one thread. `reward.py` next to it
//! does the same work in Python, as trainers there do it (a loop over the batch).

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use rlt_core::reward::{Gsm8k, Math, NO_VERDICTS, RewardFunction, Sample};
use serde_json::{Value, json};

/// Completions in one measurement.
const NUM_SAMPLES: u64 = 100_000;

/// The completion and its ground truth; `reward.py` writes the same.
fn row(idx: u64) -> (String, Value) {
    let thought = "First we simplify, then we solve for $x$, and then we check the sign. ".repeat(8);
    let answer = idx % 97;
    (
        format!("{thought}So $x = \\boxed{{\\frac{{{answer}}}{{ 2 }}}}$.\n#### {answer}"),
        json!(format!("\\frac{{{answer}}}{{2}}")),
    )
}

fn judge(function: &dyn RewardFunction, rows: &[(String, Value)]) -> f64 {
    let score = |(completion, ground_truth): &(String, Value)| {
        let (num_tokens, extra_info) = (completion.len() / 4, &Value::Null);
        let sample =
            Sample { prompt: "", completion, num_tokens, ground_truth, extra_info, verdicts: &NO_VERDICTS };
        function.score(&sample).unwrap_or(0.0)
    };
    rows.iter().map(score).sum()
}

fn rewards(criterion: &mut Criterion) {
    let rows: Vec<(String, Value)> = (0..NUM_SAMPLES).map(row).collect();
    assert_eq!(judge(&Math, &rows), NUM_SAMPLES as f64);
    let mut group = criterion.benchmark_group("reward");
    group.sample_size(10).throughput(Throughput::Elements(NUM_SAMPLES));
    group.bench_function("math", |bencher| bencher.iter(|| judge(&Math, black_box(&rows))));
    group.bench_function("gsm8k", |bencher| bencher.iter(|| judge(&Gsm8k::default(), black_box(&rows))));
    group.finish();
}

criterion_group!(benches, rewards);
criterion_main!(benches);
