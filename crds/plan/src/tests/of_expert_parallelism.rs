//! Tests of the memory of ranks with different experts, and of refused jobs with expert parallelism.

use rlt_api::validate;
use rlt_models::{ExpertForm, ExpertGroups, Experts, ModelConfig};
use serde_json::{Value, json};

use super::{check_model, manifest, spec};
use crate::{MemoryPlan, Models, Phase, plan};

const HIDDEN: u64 = 64;
const WIDTH: u64 = 32;
const EXPERTS: u64 = 8;
const LAYERS: u64 = 2;
/// Weights of the experts of a layer: gate, up and down.
const OF_LAYER: u64 = EXPERTS * 3 * HIDDEN * WIDTH;

pub(super) fn mixture() -> ModelConfig {
    ModelConfig::from_json(&json!({
        "architectures": ["Qwen3MoeForCausalLM"], "vocab_size": 100, "hidden_size": HIDDEN, "intermediate_size": 128,
        "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "num_experts": EXPERTS, "num_experts_per_tok": 2, "moe_intermediate_size": WIDTH, "norm_topk_prob": true,
        "max_position_embeddings": 4096, "tie_word_embeddings": true, "hidden_act": "silu",
    }))
    .unwrap()
}

fn job(mesh: &Value) -> Value {
    let mut spec = spec();
    spec["workers"] = json!({"count": 4, "mesh": mesh, "device": "Cpu"});
    spec
}

fn memory(mesh: &Value) -> MemoryPlan {
    let models = Models { policy: Some(mixture()), reward: Vec::new() };
    plan(&validate(&manifest(&job(mesh))).unwrap(), &models).memory.unwrap()
}

fn bytes(mesh: &Value, phase: Phase, name: &str) -> u64 {
    super::bytes(&memory(mesh), phase, name)
}

#[test]
fn a_rank_gathers_only_its_experts_and_keeps_its_shard_of_all() {
    let (fsdp, distributed) = (json!({"dpShard": 4}), json!({"dpShard": 4, "ep": 4}));
    let both = |phase, name| (bytes(&fsdp, phase, name), bytes(&distributed, phase, name));
    // Two layers of experts in fp32, without the three quarters of the experts that other ranks hold.
    let (all, own) = both(Phase::Update, "gathered weights");
    assert_eq!(all - own, 2 * 4 * OF_LAYER * 3 / 4);
    // Gradients of experts that only this rank holds are added in place.
    let (all, own) = both(Phase::Update, "gathered gradients");
    assert_eq!(all - own, 3 * 4 * OF_LAYER);
    for (phase, name) in
        [(Phase::Update, "weights"), (Phase::Update, "gradients"), (Phase::Update, "optimizer state")]
    {
        let (all, own) = both(phase, name);
        assert!(all > 0 && all == own, "{name}: {all} bytes of the four ranks, {own}");
    }
}

#[test]
fn a_rank_gathers_its_shard_of_the_width_of_its_experts() {
    let (distributed, both) = (json!({"dpShard": 2, "ep": 2}), json!({"dpShard": 2, "tp": 2, "ep": 2}));
    for name in ["gathered weights", "weights", "optimizer state"] {
        let of = |mesh: &Value| bytes(mesh, Phase::Update, name);
        let (whole, part) = (of(&distributed), of(&both));
        // Every rank has full norms and routers.
        assert!(part.abs_diff(whole / 2) < whole / 50, "{name}: {whole} {part}");
    }
}

#[test]
fn ranks_of_a_sequence_parallel_group_keep_different_experts() {
    let kept = |mesh: Value, name: &str| bytes(&mesh, Phase::Update, name);
    let (sp, ep) = (json!({"sp": 2}), json!({"sp": 2, "ep": 2}));
    for (name, width) in [("weights", 4), ("gradients", 4), ("optimizer state", 8)] {
        let (all, own) = (kept(sp.clone(), name), kept(ep.clone(), name));
        assert_eq!(all - own, width * LAYERS * OF_LAYER / 2, "{name}");
    }
}

#[test]
fn a_sync_sends_the_experts_that_others_lack() {
    let sent = |mesh: Value| {
        let mut spec = job(&mesh);
        spec["model"]["lora"] = json!({"merge": true});
        let models = Models { policy: Some(mixture()), reward: Vec::new() };
        plan(&validate(&manifest(&spec)).unwrap(), &models).weight_sync.unwrap().sent_bytes
    };
    // All in fp32. With `ep: 4` a rank holds a quarter of the experts and sends it to three ranks. With FSDP
    // it sends its quarter of all experts to three ranks, which is as much.
    assert_eq!(sent(json!({"dpShard": 4, "ep": 4})), sent(json!({"dpShard": 4})));
    // With `ep: 2` two ranks shard one half of the experts and exchange it; then each sends the half to one
    // rank.
    let halves = sent(json!({"dpShard": 4, "ep": 2}));
    assert_eq!(halves, sent(json!({"dpShard": 4})));
    // With `tp: 2` a rank sends its shard (half of the width) of half of the experts to one rank, then that
    // half in full.
    let both = sent(json!({"dpShard": 2, "tp": 2, "ep": 2}));
    assert!(both.abs_diff(halves) < 100, "{both} {halves}");
    // Each rank of the sequence-parallel group sends its half of the experts to the other.
    assert_eq!(sent(json!({"sp": 2, "ep": 2})), 4 * LAYERS * OF_LAYER / 2);
}

fn refusal(mesh: &Value, model: &ModelConfig) -> Option<String> {
    let job = validate(&manifest(&job(mesh))).unwrap();
    check_model(job.spec(), model).err().map(|refusal| refusal.to_string())
}

#[test]
fn experts_are_distributed_over_a_divisor_of_their_number_and_of_a_copy_s_ranks() {
    assert_eq!(refusal(&json!({"dpShard": 2, "sp": 2, "ep": 4}), &mixture()), None);
    let mut seven = mixture();
    seven.experts.as_mut().unwrap().num_experts = 7;
    assert_eq!(
        refusal(&json!({"dpShard": 2, "ep": 2}), &seven).unwrap(),
        "spec.workers.mesh.ep: 2 ranks cannot share the 7 experts of a layer: expected one of 1, 7"
    );
    assert_eq!(
        refusal(&json!({"dpShard": 2, "ep": 2}), &super::qwen()).unwrap(),
        "spec.workers.mesh.ep: 2 ranks cannot share the experts of Qwen2, which has none: expected 1"
    );
}

#[test]
fn a_job_without_a_given_device_is_checked_for_the_device_that_is_found() {
    use rlt_api::conflicts::ChosenDevice;
    use rlt_api::spec::Device;
    let mut manifest_value = job(&json!({"dpShard": 2, "ep": 2}));
    manifest_value["workers"]["device"] = json!("Auto");
    let job = validate(&manifest(&manifest_value)).unwrap();
    let refused = |device| crate::check_model(job.spec(), &mixture(), device).is_err();
    assert!(refused(ChosenDevice::Cuda) && !refused(ChosenDevice::Cpu));
    let devices = [Device::Auto, Device::Cpu, Device::Cuda].map(Device::without_machine);
    assert_eq!(devices, [Device::Cpu, Device::Cpu, Device::Cuda]);
}

#[test]
fn mixtures_train_on_gpus_unless_ranks_exchange_their_rows_or_a_part_has_no_kernel() {
    let refused = |device: &str, ep: u32, model: &ModelConfig| {
        let mut spec = job(&json!({"dpShard": 2, "ep": ep}));
        spec["workers"]["device"] = device.into();
        let job = validate(&manifest(&spec)).unwrap();
        check_model(job.spec(), model).err().map(|refusal| refusal.to_string())
    };
    assert_eq!(refused("Cuda", 1, &mixture()), None);
    assert_eq!(refused("Cpu", 2, &mixture()), None);
    assert_eq!(
        refused("Cuda", 2, &mixture()).unwrap(),
        "spec.workers.mesh.ep: ranks with GPUs do not exchange rows of experts yet: expected 1 on GPUs, got 2"
    );
    let of_experts = |change: fn(&mut Experts)| {
        let mut model = mixture();
        change(model.experts.as_mut().unwrap());
        refused("Cuda", 1, &model).unwrap()
    };
    let with_biases = of_experts(|experts| experts.form = ExpertForm::Clamped);
    assert!(with_biases.contains("has experts with biases, which have no kernels"), "{with_biases}");
    let in_groups = of_experts(|experts| {
        experts.routing.groups = Some(ExpertGroups { count: 2, chosen: 1, by_best: 1 });
    });
    assert!(in_groups.contains("groups of experts"), "{in_groups}");
    for too_many in
        [of_experts(|all| all.num_experts = 1025), of_experts(|all| all.num_experts_per_token = 33)]
    {
        assert!(too_many.contains("more than 1024 experts in a layer or 32 for a token"), "{too_many}");
    }
}

#[test]
fn manifests_that_cannot_distribute_experts_are_refused_with_the_values_that_can() {
    let problems = |spec: &Value| validate(&manifest(spec)).map(drop);
    let of_ep = |spec: &Value| {
        let problem =
            problems(spec).unwrap_err().into_iter().find(|problem| problem.path.ends_with("mesh.ep"));
        let problem = problem.unwrap();
        (problem.message, problem.value, problem.allowed)
    };
    let (message, value, allowed) = of_ep(&job(&json!({"dpShard": 2, "ep": 4})));
    assert!(message.starts_with("ep must divide dpShard * sp"), "{message}");
    assert_eq!((value, allowed), (Some(json!(4)), Some("one of 1, 2".to_owned())));
    let (message, ..) = of_ep(&job(&json!({"dpShard": 4, "referenceDpShard": 2, "ep": 4})));
    assert!(message.starts_with("ep must divide referenceDpShard * sp"), "{message}");
    let architecture = |experts: Option<u64>| {
        let mut spec = job(&json!({"dpShard": 4, "ep": 4}));
        spec["model"] = json!({
            "architecture": {"family": "Qwen3Moe", "hiddenSize": 64, "intermediateSize": 32, "numLayers": 2, "numHeads": 4},
            "tokenizer": {"characters": "0123456789+= "},
        });
        if let Some(count) = experts {
            spec["model"]["architecture"]["experts"] = json!({"count": count, "perToken": 2});
        }
        spec
    };
    assert_eq!(problems(&architecture(Some(8))), Ok(()));
    for experts in [None, Some(6)] {
        let (message, ..) = of_ep(&architecture(experts));
        assert!(message.starts_with("ep must divide the model's experts.count"), "{message}");
    }
}
