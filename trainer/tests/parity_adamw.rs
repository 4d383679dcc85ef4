//! AdamW equals `torch.optim.AdamW`, clipping and late parameters included, and survives a checkpoint.
//!
//! `fixtures/optim/make.py` wrote the expected values.
#![expect(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeMap;

use rlt_storage::checkpoint::{CheckpointContent, CheckpointStore};
use rlt_trainer::roles::optim::{AdamW, AdamWOptions, StepOutcome};
use tch::Tensor;

const NAMES: [&str; 3] = ["matrix", "vector", "late"];
const OPTIONS: AdamWOptions =
    AdamWOptions { betas: (0.9, 0.95), epsilon: 1e-6, weight_decay: 0.1, lora_b_ratio: 1.0 };
const MAX_GRAD_NORM: f64 = 2.0;

fn fixture() -> BTreeMap<String, Tensor> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/optim/adamw.safetensors");
    Tensor::read_safetensors(path).expect("the committed fixture").into_iter().collect()
}

fn leaves(fixture: &BTreeMap<String, Tensor>, prefix: &str) -> Vec<(String, Tensor)> {
    let leaf = |name: &str| fixture[&format!("{prefix}.{name}")].copy().set_requires_grad(true);
    NAMES.iter().map(|&name| (name.to_owned(), leaf(name))).collect()
}

fn shared(leaves: &[(String, Tensor)]) -> Vec<(String, Tensor)> {
    leaves.iter().map(|(name, leaf)| (name.clone(), leaf.shallow_clone())).collect()
}

/// Runs step `step` of the fixture and returns the gradient norm.
fn step(
    optimizer: &mut AdamW,
    leaves: &[(String, Tensor)],
    fixture: &BTreeMap<String, Tensor>,
    step: usize,
) -> f64 {
    optimizer.clear_gradients();
    for (name, leaf) in leaves {
        if let Some(gradient) = fixture.get(&format!("{step}.gradient.{name}")) {
            (leaf * gradient).sum(tch::Kind::Float).backward();
        }
    }
    let learning_rate = fixture["learning_rates"].double_value(&[step as i64]);
    match optimizer.step(learning_rate, Some(MAX_GRAD_NORM)).expect("steps") {
        StepOutcome::Applied { grad_norm } => grad_norm,
        StepOutcome::SkippedNonFinite | StepOutcome::SkippedOverflow => panic!("the fixture is finite"),
    }
}

fn assert_close(got: &Tensor, expected: &Tensor, num_steps: usize, what: &str) {
    // 1e-7 a step, or the spacing of float32 where that is wider: the fused step rounds less often than
    // torch.
    let allowed = (expected.abs() * f64::from(f32::EPSILON)).clamp_min(1e-7) * num_steps as f64;
    let worst = ((got - expected).abs() / allowed).max().double_value(&[]);
    assert!(worst <= 1.0, "{what} differs by {worst} times what is allowed");
}

#[test]
fn five_steps_equal_torch() {
    let fixture = fixture();
    let leaves = leaves(&fixture, "initial");
    let mut optimizer = AdamW::new(shared(&leaves), OPTIONS).expect("three parameters");
    for idx in 0..5 {
        let grad_norm = step(&mut optimizer, &leaves, &fixture, idx);
        let expected = fixture["grad_norms"].double_value(&[idx as i64]);
        assert!((grad_norm - expected).abs() <= 1e-6 * expected, "norm {grad_norm} is not {expected}");
        for (name, leaf) in &leaves {
            assert_close(
                leaf,
                &fixture[&format!("{idx}.parameter.{name}")],
                idx + 1,
                &format!("{name} of step {idx}"),
            );
        }
        for (name, moment) in optimizer.state_tensors().expect("here") {
            let (name, part) =
                name.strip_prefix("optimizer.").and_then(|n| n.split_once('.')).expect("a part");
            if let Some(expected) = fixture.get(&format!("{idx}.{part}.{name}")) {
                assert_close(&moment, expected, idx + 1, &format!("{part} of {name} of step {idx}"));
            }
        }
    }
}

#[test]
fn a_reloaded_optimizer_takes_bitwise_equal_steps() {
    let fixture = fixture();
    let leaves = leaves(&fixture, "initial");
    let mut optimizer = AdamW::new(shared(&leaves), OPTIONS).expect("three parameters");
    (0..3).for_each(|idx| {
        step(&mut optimizer, &leaves, &fixture, idx);
    });

    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut store = CheckpointStore::open(dir.path(), 1).expect("opens");
    let tensors = shared(&leaves).into_iter().chain(optimizer.state_tensors().expect("here")).collect();
    store.save(3, &CheckpointContent { tensors, state: serde_json::json!({}) }).expect("saves");
    let checkpoint = store.latest_complete().expect("lists").checkpoint.expect("complete");
    let load = |name: &str| checkpoint.tensor(name).expect("present").set_requires_grad(true);
    let resumed_leaves: Vec<_> = NAMES.iter().map(|&name| (name.to_owned(), load(name))).collect();
    let mut resumed = AdamW::new(shared(&resumed_leaves), OPTIONS).expect("three parameters");
    resumed.load(&checkpoint).expect("fits");

    for idx in 3..5 {
        step(&mut optimizer, &leaves, &fixture, idx);
        step(&mut resumed, &resumed_leaves, &fixture, idx);
        for ((name, leaf), (_, resumed)) in leaves.iter().zip(&resumed_leaves) {
            assert!(leaf.equal(resumed), "{name} differs after step {idx}");
        }
    }
}
