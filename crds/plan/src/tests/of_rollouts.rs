//! Tests of the rollout: concurrent sequences, their bounded KV cache, and the blocks that samples share.

use serde_json::{Value, json};

use super::{Phase, bytes, planned, term};

#[test]
fn samples_of_a_prompt_share_its_blocks_in_the_cache() {
    // 512 + 511 tokens take 64 blocks of 16 tokens, 31 of which the samples of a prompt share. 8 prompts of 8
    // samples.
    let blocks = 8 * 65 + 56 * (64 - 31);
    let slots = (blocks + blocks / 100 + 1) * 16;
    assert_eq!(term(|_| {}, Phase::Rollout, "KV cache"), slots * 2 * 24 * 128 * 4);
}

#[test]
fn several_ranks_divide_the_sequences_that_are_decoded_together() {
    let with = |count: u32| {
        planned(|spec| spec["workers"] = json!({"count": count, "device": "Cpu"})).batch.concurrent_sequences
    };
    // 8 prompts of 8 samples; with three workers the busiest one has three of the prompts.
    assert_eq!([with(1), with(2), with(3)], [64, 32, 24]);
}

#[test]
fn the_cache_is_bounded_by_the_rollouts_share_of_a_pods_memory_and_a_prefill_by_its_budget() {
    let cache = |memory: &'static str, fraction: f64| {
        let change = move |spec: &mut Value| {
            spec["workers"]["resources"]["memory"] = memory.into();
            spec["rollout"]["memoryFraction"] = fraction.into();
        };
        term(change, Phase::Rollout, "KV cache")
    };
    let weights = term(|_| {}, Phase::Rollout, "rollout weights");
    assert_eq!(cache("64Gi", 0.5), term(|_| {}, Phase::Rollout, "KV cache"), "there is room for all");
    assert_eq!(cache("4Gi", 0.5), (2 << 30) - weights);
    assert_eq!(cache("4Gi", 0.1), 0, "the weights alone are larger");
    let activations = |budget: u32| {
        let change = move |spec: &mut Value| {
            spec["rollout"]["maxBatchedTokens"] = budget.into();
            spec["rollout"]["maxConcurrentSequences"] = 64.into();
        };
        term(change, Phase::Rollout, "activations")
    };
    assert_eq!(activations(1024), 2 * activations(512));
    assert_eq!(activations(512), 8 * activations(64), "a prompt of 512 tokens comes in 8 pieces");
}

#[test]
fn a_longest_sequence_below_prompt_and_completion_makes_groups_smaller() {
    let with = |longest: Option<u32>, budget: u32| {
        planned(move |spec| {
            if let Some(longest) = longest {
                spec["rollout"]["maxModelTokens"] = longest.into();
            }
            spec["training"]["maxTokensPerMicroBatch"] = budget.into();
        })
    };
    let batch = |longest| with(longest, 1024).batch.max_sequence_tokens;
    assert_eq!((batch(None), batch(Some(800)), batch(Some(2048))), (1024, 800, 1024));
    // Of all groups with at most 800 tokens a sequence, the largest has completions of 512 and a prompt of
    // 288.
    let tokens = |longest| bytes(&with(longest, 8192).memory.unwrap(), Phase::Update, "activations");
    let of_one = tokens(None) / (512 + 8 * 511);
    assert_eq!(tokens(Some(800)), of_one * (288 + 8 * 511));
}

/// Plans a job on `device` whose completions a reward model judges.
fn judged_on(device: &str, dp_shard: u32) -> crate::MemoryPlan {
    let mut spec = super::spec();
    spec["rewards"]["functions"][0] =
        json!({"name": "taste", "kind": "Model", "model": {"path": "/models/taste"}});
    spec["workers"] = json!({"count": dp_shard, "mesh": {"dpShard": dp_shard}, "device": device});
    let job = rlt_api::validate(&super::manifest(&spec)).unwrap();
    let models = super::Models { policy: Some(super::qwen()), reward: vec![super::qwen()] };
    super::plan(&job, &models).memory.unwrap()
}

/// Blocks that one CUDA stream has freed are not reused by others until the cache is emptied, which happens
/// before a weight sync and after sampling.
#[test]
fn blocks_that_weight_sync_and_decoding_have_freed_are_counted_until_sampling_ends() {
    for dp_shard in [1, 4] {
        let memory = judged_on("Cuda", dp_shard);
        let sum = |phase, names: &[&str]| names.iter().map(|name| bytes(&memory, phase, name)).sum::<u64>();
        let by_sync = sum(Phase::WeightSync, &["gathered weights", "fetched weights", "packing temporaries"]);
        let by_decoding = sum(Phase::Rollout, &["sampling logits", "activations"]);
        assert!(by_sync > 0 && by_decoding > 0, "{by_sync} {by_decoding}");
        let cached = |phase| bytes(&memory, phase, "cached blocks");
        assert_eq!([cached(Phase::Rollout), cached(Phase::Reward)], [by_sync, by_sync + by_decoding]);
        for phase in [Phase::WeightSync, Phase::Logprob, Phase::Update, Phase::Optimizer] {
            assert_eq!(cached(phase), 0, "{phase:?}");
        }
        let on_cpu = judged_on("Cpu", dp_shard);
        assert_eq!(bytes(&on_cpu, Phase::Rollout, "cached blocks"), 0, "a CPU has no streams");
    }
}
