//! Tests of the memory of adapters: rank patterns, magnitudes, and module names of Megatron.

use serde_json::{Value, json};

use super::*;

fn trainable(lora: Value) -> u64 {
    planned(|spec| spec["model"]["lora"] = lora).parameters.unwrap().trainable
}

const Q: u64 = 896 + 896;
const DOWN: u64 = 4864 + 896;

#[test]
fn patterns_of_ranks_count_and_those_that_may_mean_a_module_count_as_if_they_did() {
    let lora =
        |pattern: Value| json!({"rank": 8, "targetModules": ["q_proj", "down_proj"], "rankPattern": pattern});
    assert_eq!(trainable(lora(json!({"down_proj": 2}))), 24 * (8 * Q + 2 * DOWN));
    let of_one = json!({"layers\\.3\\.self_attn\\.q_proj": 16});
    assert_eq!(trainable(lora(of_one)), 24 * 8 * (Q + DOWN) + 8 * Q);
    assert_eq!(trainable(lora(json!({".*_proj": 9}))), 24 * 9 * (Q + DOWN));
    assert_eq!(trainable(lora(json!({".*_proj": 2}))), 24 * 8 * (Q + DOWN), "an upper bound");
}

#[test]
fn dora_trains_a_number_more_for_each_output_and_takes_norms_of_one_projection() {
    let lora = |dora: bool| json!({"rank": 8, "targetModules": ["q_proj", "down_proj"], "dora": dora});
    assert_eq!(trainable(lora(true)) - trainable(lora(false)), 24 * (896 + 896));
    let norms = |dora: bool, phase| term(|spec| spec["model"]["lora"] = lora(dora), phase, "DoRA norms");
    assert_eq!(norms(true, Phase::Logprob), 4 * 896 * 4864);
    assert_eq!(norms(false, Phase::Logprob), 0);
    let kept = |dora: bool| term(|spec| spec["model"]["lora"] = lora(dora), Phase::Update, "activations");
    assert!(kept(true) > kept(false), "what magnitudes scale is kept");
}

#[test]
fn modules_that_are_trained_whole_count_with_their_numbers_and_are_folded_in() {
    let lora = |names: &[&str]| json!({"rank": 8, "targetModules": ["q_proj"], "modulesToSave": names});
    let of = |names: &[&str]| trainable(lora(names)) - 24 * 8 * Q;
    // The head is the embedding.
    assert_eq!(of(&["embed_tokens"]), 151_936 * 896);
    assert_eq!(of(&["input_layernorm"]), 24 * 896);
    assert_eq!(of(&["norm"]), (24 * 2 + 1) * 896);
    let moments = |names| term(|spec| spec["model"]["lora"] = lora(names), Phase::Update, "optimizer state");
    assert_eq!(moments(&["embed_tokens"]) - moments(&[]), 8 * 151_936 * 896);
    let weights = |names| term(|spec| spec["model"]["lora"] = lora(names), Phase::Update, "weights");
    assert_eq!(weights(&["embed_tokens"]) - weights(&[]), 4 * 151_936 * 896, "beside the base's");
    assert_eq!(planned(|spec| spec["model"]["lora"] = lora(&["norm"])).choices.merge_lora, Some(true));
}

#[test]
fn megatron_s_names_count_as_their_modules() {
    let lora = |names: &[&str]| json!({"rank": 8, "targetModules": names});
    assert_eq!(
        trainable(lora(&["linear_qkv", "linear_fc2"])),
        trainable(lora(&["q_proj", "k_proj", "v_proj", "down_proj"]))
    );
}

/// Sets one prompt and eight completions, with `tokens` tokens in total.
fn short(tokens: u64) -> impl FnOnce(&mut Value) {
    move |spec: &mut Value| {
        spec["algorithm"]["kind"] = "GRPO".into();
        spec["data"]["maxPromptTokens"] = (tokens / 9).into();
        spec["rollout"] = json!({"maxCompletionTokens": tokens / 9, "samplesPerPrompt": 8});
        spec["training"]["promptsPerStep"] = 1.into();
        spec["training"]["promptsPerUpdate"] = 1.into();
        spec["model"]["lora"] = json!({"rank": 8, "targetModules": ["q_proj", "down_proj"]});
    }
}

#[test]
fn an_adapter_stays_unmerged_by_default_if_its_products_cost_less_than_merging() {
    let merged = |change: &dyn Fn(&mut Value), tokens: u64| {
        planned(|spec| {
            short(tokens)(spec);
            spec["training"]["activationCheckpointing"] = true.into();
            change(spec);
        })
        .choices
        .merge_lora
    };
    let as_it_is = |_: &mut Value| {};
    // Merging takes 8 * inputs * outputs operations, the products of a token 8 * (inputs + outputs).
    let bound = (896 * 896 + 4864 * 896) / (Q + DOWN);
    let below = (bound - 1) / 9 * 9;
    assert_eq!(merged(&as_it_is, below), Some(false));
    assert_eq!(merged(&as_it_is, below + 9), Some(true));
    assert_eq!(merged(&|spec| spec["model"]["lora"]["merge"] = true.into(), below), Some(true));
    assert_eq!(merged(&|spec| spec["model"]["lora"]["merge"] = false.into(), 9000), Some(false));
    assert_eq!(merged(&|spec| spec["model"]["lora"]["dora"] = true.into(), below), Some(true));
    assert_eq!(merged(&|spec| spec["workers"]["device"] = "Cuda".into(), below), Some(true));
    assert_eq!(merged(&|spec| spec["model"] = json!({"path": "/models/qwen"}), below), None);
    assert_eq!(merged(&|spec| spec["model"]["quantization"] = json!({}), 9000), Some(false));
    // An adapter of this rank is not small.
    assert_eq!(merged(&|spec| spec["model"]["lora"]["rank"] = 512.into(), 9), Some(true));
    // Updates determine the peak, and the packed base would be resident during them.
    let keeps = |spec: &mut Value| spec["training"]["activationCheckpointing"] = false.into();
    assert_eq!(merged(&keeps, below), Some(true));
    let in_pod = |memory: &str| {
        let resources = json!({"resources": {"memory": memory}});
        merged(&|spec: &mut Value| spec["workers"] = resources.clone(), below)
    };
    assert_eq!((in_pod("5Gi"), in_pod("3900Mi")), (Some(false), Some(true)));
    // A rank with an FSDP shard packs the full model in any rollout, so an unmerged adapter takes no more
    // memory.
    let shared = |spec: &mut Value| {
        spec["workers"] = json!({"count": 4, "mesh": {"dpShard": 4}});
        spec["training"]["promptsPerStep"] = 4.into();
    };
    assert_eq!(merged(&shared, below), Some(false));
}

#[test]
fn a_sync_of_an_unmerged_adapter_copies_and_sends_only_the_adapter() {
    let sync = |merge: bool, shards: u32| {
        planned(|spec| {
            short(900)(spec);
            spec["model"]["lora"]["merge"] = merge.into();
            spec["workers"] = json!({"count": shards, "mesh": {"dpShard": shards}});
            spec["training"]["promptsPerStep"] = 4.into();
        })
        .weight_sync
        .unwrap()
    };
    let adapter = 4 * 24 * 8 * (Q + DOWN);
    assert_eq!((sync(false, 1).bytes, sync(false, 1).sent_bytes), (adapter, 0));
    assert_eq!((sync(false, 4).bytes, sync(false, 4).sent_bytes), (adapter, adapter / 4 * 3));
    let layers = 24 * (2 * 896 * 896 + 2 * 128 * 896 + 3 * 4864 * 896 + 896 + 2 * 128);
    let weights = 4 * (layers + 151_936 * 896);
    assert_eq!((sync(true, 4).bytes, sync(true, 4).sent_bytes), (weights, weights / 4 * 3));
    assert!(planned(|_| {}).weight_sync.is_none());
}

#[test]
fn the_base_of_an_unmerged_adapter_stays_packed_through_the_updates() {
    let of = |merge: bool, phase, name| {
        let change = |spec: &mut Value| {
            short(900)(spec);
            spec["model"]["lora"]["merge"] = merge.into();
        };
        term(change, phase, name)
    };
    let packed = of(true, Phase::Rollout, "rollout weights");
    for phase in [Phase::WeightSync, Phase::Rollout, Phase::Logprob, Phase::Update, Phase::Optimizer] {
        assert_eq!(of(false, phase, "rollout weights"), packed, "{phase:?}");
    }
    assert_eq!(of(false, Phase::Loading, "rollout weights"), 0);
    assert_eq!(of(true, Phase::Update, "rollout weights"), 0);
    // Panels of 32 outputs: A [8 to 32, inputs] and B [outputs, 8].
    let pairs = 24 * (32 * 896 + 896 * 8 + 32 * 4864 + 896 * 8);
    assert_eq!(of(false, Phase::Rollout, "rollout adapter"), 4 * pairs);
    assert_eq!(of(false, Phase::Update, "rollout adapter"), 0);
}

#[test]
fn an_adapter_that_cannot_stay_unmerged_is_refused_by_the_field() {
    let refused = |change: &dyn Fn(&mut Value)| {
        let mut own = spec();
        short(900)(&mut own);
        own["model"]["lora"]["merge"] = false.into();
        change(&mut own);
        validate(&manifest(&own)).unwrap_err().iter().map(ToString::to_string).collect::<String>()
    };
    for message in [
        refused(&|spec| spec["model"]["lora"]["dora"] = true.into()),
        refused(&|spec| spec["model"]["lora"]["targetParameters"] = json!(["mlp.experts.down_proj"])),
        refused(&|spec| {
            spec["model"]["lora"]["merge"] = true.into();
            spec["model"]["quantization"] = json!({});
        }),
    ] {
        assert!(message.contains("spec.model.lora.merge"), "{message}");
    }
}
