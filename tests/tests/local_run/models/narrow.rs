//! Jobs in bfloat16 on CPUs with AVX512_BF16 (and those with AMX have it), where rollout and actor compute
//! a token with the same bits.

use serde_json::{Value, json};

use crate::job::{Place, merge, tiny_with};

/// Largest difference of a log-prob whose logits have the same bits: rollout and actor compute the softmax in
/// float32 by different functions. One flip in the last bit of a logit is a hundred times as much.
const SOFTMAX: f64 = 1e-5;

/// Whether products in bf16 have one order of sums on this CPU, as `rlt_torch::has_one_order` says, which
/// asks the CPU and the kernel itself.
fn multiplies_in_bf16() -> bool {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = cpu.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    ["avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_bf16"]
        .iter()
        .all(|flag| flags.split(' ').any(|word| word == *flag))
}

/// Changes for layers so wide that kernels for few and for many rows might split their sums differently.
fn narrow(changes: Value) -> Value {
    let architecture = json!({
        "family": "Qwen3", "hiddenSize": 192, "intermediateSize": 1600, "numLayers": 3, "numHeads": 6,
        "numKvHeads": 2, "headDim": 32, "initializerRange": 0.2
    });
    let mut all = json!({
        "model": { "architecture": architecture },
        "rollout": { "samplesPerPrompt": 8, "maxCompletionTokens": 16 },
        "training": { "precision": "Bf16", "promptsPerStep": 4, "steps": 2 },
    });
    merge(&mut all, changes);
    tiny_with(all)
}

#[test]
fn rollout_and_actor_agree_on_every_token_in_bfloat16_where_the_cpu_multiplies_in_it() {
    if !multiplies_in_bf16() {
        return rlt_skipped::skip_also_under_ci("one order of sums in bfloat16 needs a CPU with AVX512_BF16");
    }
    let beside = json!({
        "model": { "lora": { "rank": 4, "alpha": 8, "merge": false } },
        "training": { "activationCheckpointing": true }
    });
    for changes in [json!({}), beside] {
        let place = Place::new();
        place.train(&narrow(changes.clone())).expect(0, &[]);
        let steps = place.steps();
        assert_eq!(steps.len(), 2);
        for step in steps {
            assert!(step["actor/grad_norm"].as_f64() > Some(0.0), "{changes}: no weight changes");
            for (name, most) in [("rollout_probs_diff_max", 1e-3), ("rollout_logprobs_diff_max", SOFTMAX)] {
                let off = step[format!("training/{name}")].as_f64().unwrap();
                assert!(off <= most, "{changes}: {name} is {off}");
            }
        }
    }
}
