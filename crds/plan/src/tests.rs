//! Tests of plans: the numbers follow from the manifest.

use rlt_api::conflicts::{ChosenDevice, Conflict, Fact};
use rlt_api::resolved::ResolvedSpec;
use rlt_api::{API_VERSION, KIND, validate};
use rlt_models::{ModelConfig, QkNorm};
use serde_json::{Value, json};

use self::manifests::{facts_of, manifest, merge, settings, spec};
use super::{MemoryPlan, ModelRefusal, Models, Phase, Place, Plan, plan, planned_model};

#[path = "../../src/conflicts/tests/manifests.rs"]
mod manifests;
mod of_adapters;
mod of_conflicts;
mod of_expert_parallelism;
mod of_families;
mod of_gathered_layers;
mod of_micro_batches;
mod of_places;
mod of_quantized_models;
mod of_refused_degrees;
mod of_reward_models;
mod of_roles;
mod of_rollouts;
mod of_shards;
mod of_tensor_parallelism;
mod of_vision_models;
mod on_machines;

const ARITHMETIC: &str = include_str!("../../tests/fixtures/arithmetic.yaml");

fn qwen() -> ModelConfig {
    ModelConfig::from_json(&json!({
        "architectures": ["Qwen2ForCausalLM"], "hidden_size": 896, "intermediate_size": 4864,
        "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936,
        "max_position_embeddings": 32768, "tie_word_embeddings": true
    }))
    .unwrap()
}

/// Checks a model on the device of the manifest.
fn check_model(spec: &ResolvedSpec, model: &ModelConfig) -> Result<(), ModelRefusal> {
    super::check_model(spec, model, ChosenDevice::without_machine(spec.workers.device))
}

fn planned(change: impl FnOnce(&mut Value)) -> Plan {
    let mut spec = spec();
    change(&mut spec);
    plan(&validate(&manifest(&spec)).unwrap(), &Models { policy: Some(qwen()), reward: Vec::new() })
}

fn bytes(memory: &MemoryPlan, phase: Phase, name: &str) -> u64 {
    let phase = memory.phases.iter().find(|candidate| candidate.phase == phase).unwrap();
    phase.terms.iter().find(|term| term.name == name).map_or(0, |term| term.bytes)
}

fn place(memory: &MemoryPlan, phase: Phase, name: &str) -> Option<Place> {
    let phase = memory.phases.iter().find(|candidate| candidate.phase == phase)?;
    phase.terms.iter().find(|term| term.name == name).map(|term| term.place)
}

fn term(change: impl FnOnce(&mut Value), phase: Phase, name: &str) -> u64 {
    bytes(&planned(change).memory.unwrap(), phase, name)
}

#[test]
fn a_model_from_its_architecture_is_planned_without_any_file() {
    let job = validate(ARITHMETIC).unwrap();
    let models = Models { policy: planned_model(&job).unwrap(), reward: Vec::new() };
    insta::assert_yaml_snapshot!(plan(&job, &models));
}

#[test]
fn samples_and_updates_multiply_as_documented() {
    let batch = planned(|spec| {
        spec["training"]["promptsPerUpdate"] = 2.into();
        spec["training"]["epochsPerBatch"] = 3.into();
        spec["training"]["maxTokensPerMicroBatch"] = 3072.into();
    })
    .batch;
    assert_eq!((batch.samples_per_step, batch.samples_per_update), (64, 16));
    assert_eq!(batch.updates_per_step, 12);
    assert_eq!(batch.max_sequence_tokens, 1024);
    // A micro-batch holds a prompt of 512 tokens with five samples of 511 each. A scoring pass holds a full
    // group.
    assert_eq!(batch.max_micro_batches_per_update, 4);
    assert_eq!(batch.max_logprob_passes_per_step, 8);
}

#[test]
fn a_prompt_counts_once_for_the_samples_of_a_pass() {
    let activations = |budget: u64| {
        let change = |spec: &mut Value| spec["training"]["maxTokensPerMicroBatch"] = budget.into();
        term(change, Phase::Update, "activations")
    };
    // Full groups of 512 + 8 * 511 tokens, and a remaining budget that is smaller than a group.
    let group = 512 + 8 * 511;
    let token = activations(group) / group;
    assert_eq!(activations(group), token * group);
    assert_eq!(activations(2 * group + 511), token * 2 * group);
    assert_eq!(activations(group - 1), token * (512 + 7 * 511));
    assert_eq!(activations(1024), token * (512 + 511));
}

#[test]
fn full_training_keeps_sixteen_bytes_a_parameter_and_four_more_for_a_reference() {
    // The published number of parameters of this model.
    let num_parameters = 494_032_768;
    let plain = planned(|_| {});
    assert_eq!(plain.parameters.unwrap().trainable, num_parameters);
    let memory = plain.memory.unwrap();
    let resident =
        ["weights", "gradients", "optimizer state"].map(|name| bytes(&memory, Phase::Update, name));
    assert_eq!(resident, [4 * num_parameters, 4 * num_parameters, 8 * num_parameters]);
    assert_eq!(bytes(&memory, Phase::Update, "reference weights"), 0);
    let with_kl = |spec: &mut Value| spec["algorithm"]["kind"] = "GRPO".into();
    assert_eq!(term(with_kl, Phase::Logprob, "reference weights"), 4 * num_parameters);
    assert_eq!(term(with_kl, Phase::Update, "reference weights"), 0, "on the CPU it is offloaded to a file");
    let on_gpu = |spec: &mut Value| {
        with_kl(spec);
        spec["workers"]["device"] = "Cuda".into();
    };
    assert_eq!(term(on_gpu, Phase::Update, "reference weights"), 2 * num_parameters, "kept as it computes");
}

#[test]
fn an_adapter_trains_rank_times_inputs_and_outputs_and_needs_no_reference() {
    let planned = planned(|spec| {
        spec["algorithm"]["kind"] = "GRPO".into();
        spec["model"]["lora"] = json!({"rank": 8, "targetModules": ["q_proj", "down_proj"]});
    });
    let trainable = 24 * 8 * ((896 + 896) + (4864 + 896));
    assert_eq!(planned.parameters.unwrap().trainable, trainable);
    let memory = planned.memory.unwrap();
    assert_eq!(bytes(&memory, Phase::Update, "optimizer state"), 8 * trainable);
    assert_eq!(bytes(&memory, Phase::Update, "reference weights"), 0);
}

#[test]
fn excluded_modules_get_no_adapter() {
    let planned = planned(|spec| {
        spec["model"]["lora"] = json!({"rank": 4, "excludeModules": ["gate_proj", "up_proj", "down_proj"]});
    });
    assert_eq!(planned.parameters.unwrap().trainable, 24 * 4 * (2 * (896 + 896) + 2 * (896 + 128)));
}

#[test]
fn a_cold_start_of_more_tokens_than_an_update_decides_the_activations() {
    let activations = |batch_size: Option<u32>| {
        let own = |spec: &mut Value| {
            spec["training"]["promptsPerStep"] = 1.into();
            spec["training"]["maxTokensPerMicroBatch"] = 32_768.into();
            spec["rollout"] = json!({"samplesPerPrompt": 2, "maxCompletionTokens": 1024});
            if let Some(batch_size) = batch_size {
                spec["algorithm"]["coldStart"] = json!({"steps": 5, "batchSize": batch_size});
            }
        };
        term(own, Phase::Update, "activations")
    };
    // A micro-batch holds one prompt with two completions, or all demonstrations of a step, each with its own
    // prompt.
    let (update, small, large) = (activations(None), activations(Some(1)), activations(Some(8)));
    assert_eq!(small, update);
    assert_eq!(large / (8 * (512 + 1023)), update / (512 + 2 * 1023));
}

#[test]
fn checkpointing_keeps_layer_inputs_alone() {
    let kept = |checkpointing: bool| {
        let change = |spec: &mut Value| spec["training"]["activationCheckpointing"] = checkpointing.into();
        term(change, Phase::Update, "activations")
    };
    // A prompt with seven of its samples; inputs of 24 layers, and input and output of the final norm.
    assert_eq!(kept(true), (512 + 7 * 511) * 4 * 896 * (24 + 2));
    assert!(kept(false) > 10 * kept(true));
}

#[test]
fn half_precision_halves_activations_cache_and_rollout_weights_but_not_the_optimizer() {
    let bf16 = |spec: &mut Value| spec["training"]["precision"] = "Bf16".into();
    for (phase, name) in [(Phase::Rollout, "KV cache"), (Phase::Rollout, "rollout weights")] {
        assert_eq!(term(|_| {}, phase, name), 2 * term(bf16, phase, name), "{name}");
    }
    assert_eq!(term(|_| {}, Phase::Update, "optimizer state"), term(bf16, Phase::Update, "optimizer state"));
    assert!(term(bf16, Phase::Update, "weight casts") > 0);
}

#[test]
fn the_loss_head_takes_what_one_chunk_takes() {
    let chunk = u64::from(super::HEAD_CHUNK_TOKENS) * 151_936 * 4;
    let small_passes = |spec: &mut Value| {
        spec["training"]["maxTokensPerMicroBatch"] = 1024.into();
        spec["training"]["maxLogprobTokens"] = 1024.into();
    };
    assert_eq!(term(small_passes, Phase::Update, "loss head chunk"), chunk);
    assert_eq!(term(small_passes, Phase::Logprob, "loss head chunk"), chunk);
    // In large passes the layers need more than the head, which runs before the backward pass of the layers.
    assert_eq!(term(|_| {}, Phase::Update, "loss head chunk"), 0);
}

#[test]
fn supervised_training_alone_neither_samples_nor_scores() {
    let planned = planned(|spec| {
        spec["algorithm"]["kind"] = "SFT".into();
        spec["rewards"]["functions"] = json!([]);
    });
    let phases: Vec<_> = planned.memory.unwrap().phases.iter().map(|phase| phase.phase).collect();
    assert_eq!(phases, [Phase::Loading, Phase::Update, Phase::Optimizer]);
    assert_eq!(planned.batch.samples_per_step, 8);
}

#[test]
fn a_reward_model_is_kept_like_the_policy_and_without_its_configuration_nothing_is_estimated() {
    let mut spec = spec();
    spec["rewards"]["functions"][0] =
        json!({"name": "taste", "kind": "Model", "model": {"path": "/models/taste"}});
    spec["training"]["precision"] = "Bf16".into();
    let job = validate(&manifest(&spec)).unwrap();
    let with = |reward| plan(&job, &Models { policy: Some(qwen()), reward }).memory;
    assert_eq!(with(Vec::new()), None);
    let memory = with(vec![qwen()]).unwrap();
    for phase in &memory.phases {
        let term = phase.terms.iter().find(|term| term.name == "reward models").unwrap();
        assert_eq!(term.bytes, 2 * qwen().parameter_count().total(), "{:?}", phase.phase);
    }
    assert!(memory.phases.iter().any(|phase| phase.phase == Phase::Reward));
    spec["training"]["offload"]["parameters"] = true.into();
    let job = validate(&manifest(&spec)).unwrap();
    let phases = plan(&job, &Models { policy: Some(qwen()), reward: vec![qwen()] }).memory.unwrap().phases;
    assert!(phases.iter().flat_map(|phase| &phase.terms).all(|term| term.name != "reward models"));
    spec["training"]["offload"]["parameters"] = false.into();
    spec["workers"] = json!({"count": 4, "mesh": {"dpShard": 4}, "device": "Cpu"});
    let job = validate(&manifest(&spec)).unwrap();
    let shared = plan(&job, &Models { policy: Some(qwen()), reward: vec![qwen()] }).memory.unwrap();
    let phase = shared.phases.iter().find(|phase| phase.phase == Phase::Reward).unwrap();
    let bytes = |name| phase.terms.iter().find(|term| term.name == name).unwrap().bytes;
    assert_eq!(bytes("reward models"), 2 * qwen().parameter_count().total().div_ceil(4));
    let (outer, layer) = (151_936 * 896 + 896, qwen().parameter_count().per_layer);
    assert_eq!(bytes("gathered reward model"), 2 * (outer + 2 * layer));
}
