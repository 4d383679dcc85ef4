//! Trainings of quantized bases, and of unmerged adapters on dense ones, on devices: results equal the CPU's
//! on any number of devices, and the rollout's log-probs are the actor's.

use serde_json::{Value, json};

use crate::run::{Run, difference, manifest, merge};

/// Tolerance of differences, as of dense models (`trainings`).
const TOLERANCE: f64 = 1e-5;

/// The tiny job with an unmerged adapter on a base that is quantized as `quantization` says.
fn job(quantization: &Value, more: &Value) -> Value {
    let mut job = json!({
        "model": {
            "architecture": { "numLayers": 2, "numHeads": 4, "numKvHeads": 2 },
            "lora": { "rank": 4, "alpha": 8, "merge": false }
        },
        "training": { "promptsPerStep": 2, "optimizer": { "learningRate": 0.001 } }
    });
    merge(&mut job, &json!({ "model": { "quantization": quantization } }));
    merge(&mut job, more);
    job
}

fn bases() -> [Value; 3] {
    [json!({ "doubleQuantization": true }), json!({ "format": "Int8" }), Value::Null]
}

#[track_caller]
fn assert_same(one: &Run, other: &Run, tolerance: f64, what: &str) {
    let difference = difference(one, other);
    assert!(difference <= tolerance, "{what} differs by {difference}");
}

#[test]
fn a_training_of_a_quantized_base_on_one_and_two_devices_gives_the_cpus_numbers() {
    for base in bases() {
        let alone = job(&base, &json!({}));
        let cpu = Run::new(0, &alone);
        assert_same(&cpu, &Run::new(1, &alone), TOLERANCE, &format!("{base} on a device"));
        let shards = job(&base, &json!({ "workers": { "count": 2, "mesh": { "dpShard": 2 } } }));
        assert_same(&cpu, &Run::new(2, &shards), TOLERANCE, &format!("{base} in shards on two devices"));
    }
}

#[test]
fn rollouts_of_a_quantized_base_are_the_actors_in_both_precisions() {
    for base in bases() {
        for (precision, tolerance) in [("Fp32", 1e-5), ("Bf16", 0.05)] {
            let run = Run::new(1, &job(&base, &json!({ "training": { "precision": precision } })));
            for step in run.steps().iter().filter(|step| !step["rollout_corr/log_ppl_diff_max"].is_null()) {
                let off = step["rollout_corr/log_ppl_diff_max"].as_f64().unwrap();
                assert!(off < tolerance, "{base} in {precision}: {step}");
            }
            assert!(run.steps().len() >= 3);
        }
    }
}

#[test]
fn a_quantized_base_that_is_offloaded_or_resumed_changes_no_bit_on_a_device() {
    let base = json!({ "doubleQuantization": true });
    let of = |more: Value| job(&base, &merged(&json!({ "training": { "precision": "Bf16" } }), &more));
    let steps = |steps: u32| of(json!({ "training": { "steps": steps } }));
    let (whole, resumed) = (Run::new(1, &steps(4)), Run::new(1, &steps(2)));
    resumed.go_on(1, &steps(4), &[]);
    assert_same(&whole, &resumed, 0.0, "the resumed run");
    let offloaded = |is: bool| {
        of(json!({
            "training": {
                "activationCheckpointing": true,
                "offload": { "parameters": is, "optimizer": is, "activations": is }
            }
        }))
    };
    assert_same(&Run::new(1, &offloaded(false)), &Run::new(1, &offloaded(true)), 0.0, "the offloaded run");
}

/// The manifest leaves device and dtype open, so only the checkpoint states the dtype of the training.
/// Weights of the base, of about 0.02, would differ by 2^-9 of their size if another dtype rounded them.
#[test]
fn a_machine_without_a_gpu_exports_the_weights_that_a_gpu_has_trained() {
    for base in bases() {
        let mut open = manifest(1, &job(&base, &json!({ "training": { "precision": "Auto" } })));
        merge(&mut open["spec"], &json!({ "workers": { "device": "Auto" } }));
        let run = Run::of(1, &open);
        let (own, exported) = (run.weights(), run.exported_weights());
        assert_eq!(own.len(), exported.len(), "{base}");
        for ((name, own), (other_name, exported)) in own.iter().zip(&exported) {
            assert_eq!((name, own.len()), (other_name, exported.len()), "{base}");
            let off = own.iter().zip(exported).map(|(own, other)| (own - other).abs()).fold(0.0, f64::max);
            assert!(off < 1e-6, "{name} of {base} is off by {off}");
        }
    }
}

fn merged(one: &Value, other: &Value) -> Value {
    let mut both = one.clone();
    merge(&mut both, other);
    both
}
