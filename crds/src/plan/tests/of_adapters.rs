//! What adapters take: ranks of their own, magnitudes, and Megatron's names.

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
fn megatron_s_names_count_as_their_modules() {
    let lora = |names: &[&str]| json!({"rank": 8, "targetModules": names});
    assert_eq!(
        trainable(lora(&["linear_qkv", "linear_fc2"])),
        trainable(lora(&["q_proj", "k_proj", "v_proj", "down_proj"]))
    );
}
