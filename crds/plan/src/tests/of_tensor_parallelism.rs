//! Tests of the memory of ranks with tensor-parallel shards of every weight, and of models that are refused.

use rlt_api::validate;
use rlt_models::ModelConfig;
use serde_json::{Value, json};

use super::{check_model, manifest, spec};
use crate::{MemoryPlan, Mesh, Models, Phase, plan};

const GIB: u64 = 1 << 30;

/// A model of Llama 3's 70 billion parameters.
fn llama_70b() -> ModelConfig {
    ModelConfig::from_json(&json!({
        "architectures": ["LlamaForCausalLM"], "vocab_size": 128_256, "hidden_size": 8192, "intermediate_size": 28_672,
        "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128,
        "max_position_embeddings": 8192, "tie_word_embeddings": false, "hidden_act": "silu",
    }))
    .unwrap()
}

/// A job of 64 ranks in bf16, with activation checkpointing.
fn job(mesh: &Value) -> Value {
    let mut spec = spec();
    spec["workers"] = json!({"count": 8, "ranksPerWorker": 8, "mesh": mesh, "device": "Cpu"});
    spec["training"]["activationCheckpointing"] = json!(true);
    spec["training"]["precision"] = json!("Bf16");
    spec["training"]["promptsPerStep"] = json!(64);
    spec
}

fn memory(mesh: &Value) -> MemoryPlan {
    let models = Models { policy: Some(llama_70b()), reward: Vec::new() };
    plan(&validate(&manifest(&job(mesh))).unwrap(), &models).memory.unwrap()
}

fn bytes(mesh: &Value, phase: Phase, name: &str) -> u64 {
    super::bytes(&memory(mesh), phase, name)
}

#[test]
fn a_rank_gathers_its_shard_of_a_layer_and_keeps_as_much_as_without_tp() {
    let (fsdp, cut) = (json!({"dpShard": 64}), json!({"dpShard": 8, "tp": 8}));
    let both = |name| (bytes(&fsdp, Phase::Update, name), bytes(&cut, Phase::Update, name));
    // In bf16, two layers of 856 million parameters, and embedding and head of 1051 million each. A
    // tensor-parallel rank gathers an eighth of them.
    let (whole, part) = both("gathered weights");
    assert!(whole > 7 * GIB && part.abs_diff(whole / 8) < GIB / 100, "{whole} {part}");
    let (whole, part) = both("gathered gradients");
    assert!(part.abs_diff(whole / 8) < GIB / 50, "{whole} {part}");
    let (whole, part) = both("loss head chunk");
    assert_eq!(part, whole / 8);
    // 64 ranks share the weights in either case; only norms are replicated within a tensor-parallel group.
    for name in ["weights", "gradients", "optimizer state"] {
        let (whole, part) = both(name);
        assert!(part >= whole && part < whole + whole / 1000, "{name}: {whole} {part}");
    }
    // The residual stream keeps its width; heads and feed-forward blocks are sharded.
    let (whole, part) = both("activations");
    assert_eq!(whole, part, "layer inputs");
    let (whole, part) = both("recomputed activations");
    assert!(part < whole / 3, "{whole} {part}");
}

#[test]
fn weight_sync_has_whole_layers() {
    let sync = |mesh: Value| bytes(&mesh, Phase::WeightSync, "gathered weights");
    assert_eq!(sync(json!({"dpShard": 64})), sync(json!({"dpShard": 8, "tp": 8})));
}

#[test]
fn the_ranks_of_a_group_count_once_for_samples_and_stay_within_a_pod() {
    let workers = |mesh: Value| validate(&manifest(&job(&mesh))).unwrap().spec().workers.clone();
    let mesh = Mesh::new(&workers(json!({"dpShard": 2, "sp": 2, "tp": 8})));
    assert_eq!((mesh.dp_replicate, mesh.tp, mesh.world_size()), (2, 8, 64));
    assert!(mesh.across_workers(8).is_empty());
    assert_eq!(mesh.across_workers(4), [("mesh.tp", 8)]);
}

#[test]
fn a_sync_sends_the_shards_that_other_ranks_lack() {
    let sent = |mesh: Value| {
        let mut spec = job(&mesh);
        spec["model"]["lora"] = json!({"merge": true});
        let models = Models { policy: Some(llama_70b()), reward: Vec::new() };
        plan(&validate(&manifest(&spec)).unwrap(), &models).weight_sync.unwrap().sent_bytes
    };
    // With FSDP alone a rank sends its 64th of the weights to 63 ranks. With tensor parallelism it sends a
    // 64th to 7 ranks, then the gathered eighth to 7 ranks, which is as much.
    let (shards, parts) = (sent(json!({"dpShard": 64})), sent(json!({"dpShard": 8, "tp": 8})));
    assert!(parts.abs_diff(shards) < 1000, "{parts} {shards}");
}

fn refusal(mesh: &Value, model: &ModelConfig) -> Option<String> {
    let job = validate(&manifest(&job(mesh))).unwrap();
    check_model(job.spec(), model).err().map(|refusal| refusal.to_string())
}

#[test]
fn shards_have_equal_heads_and_widths_and_some_tokens() {
    assert_eq!(refusal(&json!({"tp": 8}), &llama_70b()), None);
    let refused = |change: &dyn Fn(&mut ModelConfig), words: &str| {
        let mut model = llama_70b();
        change(&mut model);
        let said = refusal(&json!({"tp": 8}), &model).unwrap();
        assert!(said.starts_with("spec.workers.mesh.tp: 8 ranks cannot share"), "{said}");
        assert!(said.contains(words), "{said}");
    };
    refused(
        &|model| model.num_kv_heads = 4,
        "64 query and 4 key heads and a feed-forward block 28672 wide: expected one of 1, 2, 4",
    );
    refused(&|model| model.intermediate_size = 100, "100 wide: expected one of 1, 2, 4");
    refused(&|model| model.vocab_size = 9, "a vocabulary of 9 tokens: expected one of 1, 2");
    refused(&|model| model.attention_sinks = true, "a sink for each head: expected 1");
    refused(&|model| model.qk_norm = super::QkNorm::AllHeads, "over all heads: expected 1");
}

#[test]
fn a_shard_of_a_mixture_has_a_shard_of_each_expert() {
    let mixture = super::of_expert_parallelism::mixture();
    assert_eq!(refusal(&json!({"tp": 2}), &mixture), None);
    assert_eq!(refusal(&json!({"tp": 2, "sp": 2, "ep": 2}), &mixture), None);
    let mut odd = mixture;
    odd.experts.as_mut().unwrap().intermediate_size = 33;
    let said = refusal(&json!({"tp": 2}), &odd).unwrap();
    assert!(said.contains("a feed-forward block 33 wide: expected one of 1"), "{said}");
}

#[test]
fn sequence_parallelism_divides_the_heads_of_a_shard() {
    assert_eq!(refusal(&json!({"tp": 8, "sp": 8}), &llama_70b()), None);
    let mut model = llama_70b();
    (model.num_heads, model.num_kv_heads) = (8, 8);
    let said = refusal(&json!({"tp": 8, "sp": 2}), &model).unwrap();
    assert!(
        said.contains("8 query and 8 key heads, of which each rank has 1 / 8: expected one of 1"),
        "{said}"
    );
}
