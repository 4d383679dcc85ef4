//! Plans of jobs: the numbers follow from the manifest.

use serde_json::{Value, json};

use super::{MemoryPlan, Models, Phase, Place, Plan, plan, planned_model};
use crate::plan::model_config::{ModelConfig, QkNorm, RopeScaling};
use crate::validate;

mod of_adapters;
mod of_expert_parallelism;
mod of_families;
mod of_gathered_layers;
mod of_quantized_models;
mod of_reward_models;
mod of_roles;
mod of_tensor_parallelism;
mod of_vision_models;
mod on_machines;

const ARITHMETIC: &str = include_str!("../../tests/fixtures/arithmetic.yaml");

fn manifest(spec: &Value) -> String {
    let manifest = json!({
        "apiVersion": crate::API_VERSION, "kind": crate::KIND, "metadata": {"name": "planned"}, "spec": spec
    });
    serde_saphyr::to_string(&manifest).unwrap()
}

/// A Qwen2.5-0.5B with full training, 8 prompts of 8 samples, 512 + 512 tokens.
fn spec() -> Value {
    json!({
        "model": {"path": "/models/qwen"},
        "data": {"train": ["train.parquet"]},
        "rewards": {"functions": [{"name": "answer", "kind": "Math"}]},
        "algorithm": {"kind": "DrGRPO"},
        "training": {"promptsPerStep": 8, "steps": 10},
    })
}

fn qwen() -> ModelConfig {
    ModelConfig::from_json(&json!({
        "architectures": ["Qwen2ForCausalLM"], "hidden_size": 896, "intermediate_size": 4864,
        "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936,
        "max_position_embeddings": 32768, "tie_word_embeddings": true
    }))
    .unwrap()
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
    // A micro-batch holds a prompt of 512 with five samples of 511 more, a scoring pass a whole group.
    assert_eq!(batch.max_micro_batches_per_update, 4);
    assert_eq!(batch.max_logprob_passes_per_step, 8);
}

#[test]
fn a_prompt_counts_once_for_the_samples_of_a_pass() {
    let activations = |budget: u64| {
        let change = |spec: &mut Value| spec["training"]["maxTokensPerMicroBatch"] = budget.into();
        term(change, Phase::Update, "activations")
    };
    // Whole groups of 512 + 8 * 511, and the rest of a budget below one group.
    let group = 512 + 8 * 511;
    let token = activations(group) / group;
    assert_eq!(activations(group), token * group);
    assert_eq!(activations(2 * group + 511), token * 2 * group);
    assert_eq!(activations(group - 1), token * (512 + 7 * 511));
    assert_eq!(activations(1024), token * (512 + 511));
}

#[test]
fn full_training_keeps_sixteen_bytes_a_parameter_and_four_more_for_a_reference() {
    // The well-known size of this model.
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
fn checkpointing_keeps_layer_inputs_alone() {
    let kept = |checkpointing: bool| {
        let change = |spec: &mut Value| spec["training"]["activationCheckpointing"] = checkpointing.into();
        term(change, Phase::Update, "activations")
    };
    // A prompt with seven of its samples; 24 layer inputs and both sides of the final norm.
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
    // Of large passes the layers take more, and the head runs before them.
    assert_eq!(term(|_| {}, Phase::Update, "loss head chunk"), 0);
}

#[test]
fn samples_of_a_prompt_share_its_blocks_in_the_cache() {
    // 512 + 511 tokens in blocks of 16 are 64; 31 of them are shared. 8 prompts of 8 samples.
    let blocks = 8 * 65 + 56 * (64 - 31);
    let slots = (blocks + blocks / 100 + 1) * 16;
    assert_eq!(term(|_| {}, Phase::Rollout, "KV cache"), slots * 2 * 24 * 128 * 4);
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
fn a_rank_learns_its_place_from_the_environment() {
    let plan = planned(|_| {});
    let group = &plan.worker_groups[0];
    let variables = group.environment(0).unwrap();
    let text: Vec<_> =
        variables.iter().map(|variable| format!("{}={}", variable.name, variable.value)).collect();
    assert_eq!(
        text,
        [
            "RANK=0",
            "WORLD_SIZE=1",
            "LOCAL_RANK=0",
            "LOCAL_WORLD_SIZE=1",
            "MASTER_ADDR=localhost",
            "MASTER_PORT=29500"
        ]
    );
    assert_eq!(group.environment(1), None);
    assert_eq!(plan.mesh.world_size(), 1);
}

#[test]
fn every_worker_has_a_rank_and_finds_the_first_by_name() {
    let plan = planned(|spec| spec["workers"] = json!({"count": 3, "device": "Cpu"}));
    assert_eq!(plan.mesh.world_size(), 3);
    let group = &plan.worker_groups[0];
    for rank in 0..3 {
        let variables = group.environment(rank).unwrap();
        let value = |name: &str| variables.iter().find(|v| v.name == name).unwrap().value.clone();
        assert_eq!(value("RANK"), rank.to_string());
        assert_eq!((value("WORLD_SIZE"), value("LOCAL_WORLD_SIZE")), ("3".to_owned(), "1".to_owned()));
        assert!(value("MASTER_ADDR").starts_with(&group.worker_name(0)));
    }
    assert_eq!(group.environment(3), None);
}

#[test]
fn a_worker_of_several_ranks_has_neighbours_and_the_mesh_lays_out_all_of_them() {
    let plan = planned(|spec| {
        spec["workers"] = json!({"count": 4, "ranksPerWorker": 8, "mesh": {"dpShard": 4}, "device": "Cuda"});
    });
    assert_eq!((plan.mesh.world_size(), plan.mesh.dp_replicate), (32, 8));
    let group = &plan.worker_groups[0];
    assert_eq!((group.num_workers, group.ranks_per_worker), (4, 8));
    let environment = |rank: u32| {
        let variables = group.environment(rank).unwrap();
        ["LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE"]
            .map(|name| variables.iter().find(|variable| variable.name == name).unwrap().value.clone())
    };
    assert_eq!(environment(8), ["0", "8", "32"]);
    assert_eq!(environment(31), ["7", "8", "32"]);
    assert_eq!(group.environment(32), None);
}

#[test]
fn an_axis_spans_workers_if_its_degree_does_not_divide_ranks_per_worker() {
    let across = |ranks_per_worker: u32, mesh: Value| {
        let plan = planned(|spec| {
            spec["workers"] =
                json!({"count": 6, "ranksPerWorker": ranks_per_worker, "mesh": mesh, "device": "Cuda"});
        });
        plan.mesh.across_workers(ranks_per_worker)
    };
    assert_eq!(across(4, json!({"sp": 2, "rolloutTp": 2, "dpShard": 12})), []);
    let crossing = [
        ("mesh.sp", 2),
        ("mesh.logprobSp", 2),
        ("mesh.referenceSp", 2),
        ("mesh.criticSp", 2),
        ("mesh.rolloutTp", 2),
    ];
    assert_eq!(across(1, json!({"sp": 2, "rolloutTp": 2})), crossing);
    assert_eq!(across(3, json!({"rolloutTp": 2})), [("mesh.rolloutTp", 2)]);
}

#[test]
fn several_ranks_divide_the_sequences_that_are_decoded_together() {
    let with = |count: u32| {
        planned(|spec| spec["workers"] = json!({"count": count, "device": "Cpu"})).batch.concurrent_sequences
    };
    // 8 prompts of 8 samples: three of them to the fullest of three workers.
    assert_eq!([with(1), with(2), with(3)], [64, 32, 24]);
}

#[test]
fn fsdp_ranks_keep_a_shard_and_gather_two_layers_beside_the_outer_unit() {
    let sharing = |dp_shard: u32| {
        move |spec: &mut Value| {
            spec["workers"] = json!({"count": 4, "mesh": {"dpShard": dp_shard}, "device": "Cpu"});
        }
    };
    let mesh = planned(sharing(2)).mesh;
    assert_eq!((mesh.dp_replicate, mesh.dp_shard, mesh.world_size()), (2, 2, 4));
    for name in ["weights", "gradients", "optimizer state"] {
        let alone = term(sharing(1), Phase::Update, name);
        assert_eq!(term(sharing(4), Phase::Update, name), alone.div_ceil(4), "{name}");
    }
    let outer = 151_936 * 896 + 896;
    let layer = (494_032_768 - outer) / 24;
    let gathered = |phase| term(sharing(2), phase, "gathered weights");
    assert_eq!(gathered(Phase::Update), 4 * (outer + 2 * layer));
    assert_eq!(gathered(Phase::Logprob), gathered(Phase::Update));
    let rollout = |dp_shard| planned(sharing(dp_shard)).memory.unwrap().phases;
    let rollout =
        |dp_shard| rollout(dp_shard).into_iter().find(|phase| phase.phase == Phase::Rollout).unwrap();
    let embeddings = term(sharing(4), Phase::Rollout, "rollout embeddings");
    assert_eq!((embeddings, term(sharing(1), Phase::Rollout, "rollout embeddings")), (4 * 151_936 * 896, 0));
    // Weights, moments and their shards: the packed weights are the only whole copy.
    let saved = 3 * 494_032_768_u64.div_ceil(4) * 12;
    let taken_over = 4 * (outer + layer);
    let least = rollout(1).total_bytes + embeddings - saved;
    let expected = least.saturating_sub(16)..=least + taken_over;
    assert!(expected.contains(&rollout(4).total_bytes), "{expected:?} {:?}", rollout(4));
    assert_eq!(gathered(Phase::Optimizer), 0);
    assert_eq!(term(sharing(2), Phase::Update, "gathered gradients"), 4 * 2 * outer);
    assert_eq!(term(sharing(1), Phase::Update, "gathered weights"), 0);
    let in_bf16 = |spec: &mut Value| {
        sharing(2)(spec);
        spec["training"]["precision"] = "Bf16".into();
    };
    assert_eq!(term(in_bf16, Phase::Update, "gathered weights"), 2 * (outer + 2 * layer));
    assert_eq!(term(in_bf16, Phase::Rollout, "gathered weights"), 2 * (outer + layer));
    assert_eq!(term(in_bf16, Phase::Update, "gathered gradients"), 4 * 2 * outer);
}

#[test]
fn every_role_is_sharded_and_a_rank_reads_only_its_shard() {
    let num_parameters = 494_032_768_u64;
    let sharing = |dp_shard: u32, kind: &'static str| {
        move |spec: &mut Value| {
            spec["workers"] = json!({"count": 4, "mesh": {"dpShard": dp_shard}, "device": "Cpu"});
            spec["algorithm"] = json!({"kind": kind, "kl": {"placement": "Reward", "coefficient": 0.1}});
        }
    };
    for dp_shard in [1, 2, 4] {
        let part = |num: u64| num.div_ceil(dp_shard.into());
        let of = |phase, name| term(sharing(dp_shard, "PPO"), phase, name);
        assert_eq!(of(Phase::Loading, "weights"), 4 * part(num_parameters));
        assert_eq!(of(Phase::Loading, "weights being read"), 8 << 20);
        assert_eq!(of(Phase::Loading, "reference weights"), 4 * part(num_parameters));
        assert_eq!(of(Phase::Logprob, "reference weights"), 4 * part(num_parameters));
        assert_eq!(of(Phase::Update, "critic"), 4 * part(num_parameters + 896));
        assert_eq!(of(Phase::Update, "critic's optimizer state"), 8 * part(num_parameters + 896));
        let outer = if dp_shard == 1 { 0 } else { 4 * (151_936 * 896 + 896) };
        assert_eq!(of(Phase::Loading, "gathered weights"), outer, "copies are made a part at a time");
    }
    let without_copies = |spec: &mut Value| {
        sharing(4, "SFT")(spec);
        spec["algorithm"] = json!({"kind": "SFT"});
        spec["rewards"]["functions"] = json!([]);
    };
    assert_eq!(term(without_copies, Phase::Loading, "gathered weights"), 0);
}

#[test]
fn sequence_parallel_ranks_hold_a_shard_of_each_pass() {
    let sharing = |sp: u32| {
        move |spec: &mut Value| {
            spec["workers"] = json!({"count": 4, "mesh": {"dpShard": 2, "sp": sp}, "device": "Cpu"});
            // Half of a group's tokens, and no whole number of samples.
            spec["training"]["maxTokensPerMicroBatch"] = ((512 + 8 * 511) / 2).into();
        }
    };
    let mesh = planned(sharing(2)).mesh;
    assert_eq!((mesh.dp_replicate, mesh.dp_shard, mesh.sp, mesh.world_size()), (1, 2, 2, 4));
    let passes = |sp| planned(sharing(sp)).batch.max_micro_batches_per_update;
    // Three samples fit beside a prompt; with twice the room all eight.
    assert_eq!((passes(1), passes(2)), (8 * 3, 8));
    let checkpointed = |sp| {
        move |spec: &mut Value| {
            sharing(sp)(spec);
            spec["training"]["activationCheckpointing"] = true.into();
        }
    };
    let token = 4 * 896 * (24 + 2);
    assert_eq!(term(checkpointed(1), Phase::Update, "activations"), token * (512 + 3 * 511));
    assert_eq!(term(checkpointed(2), Phase::Update, "activations"), token * (512 + 8 * 511) / 2);
    let weights = |sp| term(sharing(sp), Phase::Update, "weights");
    assert_eq!(weights(1), weights(2), "copies of the model are held by dpShard workers alone");
}

#[test]
fn tensor_parallel_ranks_hold_a_shard_of_the_packed_weights_and_all_sequences_of_the_group() {
    let sampling = |rollout_tp: u32| {
        move |spec: &mut Value| {
            spec["workers"] = json!({"count": 4, "mesh": {"rolloutTp": rollout_tp}, "device": "Cpu"});
        }
    };
    let (batch, mesh) = (planned(sampling(2)).batch, planned(sampling(2)).mesh);
    assert_eq!((mesh.rollout_tp, mesh.dp_replicate, mesh.world_size()), (2, 4, 4));
    // 8 prompts of 8 samples for two copies of the weights.
    assert_eq!((planned(sampling(1)).batch.concurrent_sequences, batch.concurrent_sequences), (16, 32));
    let of = |rollout_tp, name| term(sampling(rollout_tp), Phase::Rollout, name);
    let norms = 24 * 2 * 896 + 896;
    assert_eq!(of(1, "rollout weights"), 4 * (494_032_768 - norms));
    assert_eq!(of(2, "rollout weights") * 2, of(1, "rollout weights"));
    // Twice the sequences of half of the key heads.
    let blocks =
        |rollout_tp| of(rollout_tp, "KV cache") / (4 * 2 * 24 * 64 * 16 * (2 / u64::from(rollout_tp)));
    assert!(blocks(2) > blocks(1) * 19 / 10, "{} and {}", blocks(2), blocks(1));
    assert_eq!(of(2, "sampling logits"), 2 * of(1, "sampling logits"));
    let weights = |rollout_tp| term(sampling(rollout_tp), Phase::Update, "weights");
    assert_eq!(weights(1), weights(2), "what is trained is as it was");
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
    // Of all groups within 800 tokens those with completions of 512 and a prompt of 288 are the largest.
    let tokens = |longest| bytes(&with(longest, 8192).memory.unwrap(), Phase::Update, "activations");
    let of_one = tokens(None) / (512 + 8 * 511);
    assert_eq!(tokens(Some(800)), of_one * (288 + 8 * 511));
}

#[test]
fn a_degree_of_rollout_shards_that_the_layers_do_not_allow_is_answered_with_those_that_they_do() {
    // 14 query heads attend to 2 key heads, beside a feed-forward block 4864 wide.
    let misfit = |rollout_tp: u32| {
        let mut spec = spec();
        spec["workers"] = json!({"count": 28, "mesh": {"rolloutTp": rollout_tp}, "device": "Cpu"});
        let job = validate(&manifest(&spec)).unwrap();
        super::check_model(job.spec(), &qwen()).err().map(|misfit| misfit.to_string())
    };
    for tp in [1, 2] {
        assert_eq!(misfit(tp), None);
    }
    for tp in [4, 7, 14] {
        let text = misfit(tp).unwrap();
        let expected = format!("spec.workers.mesh.rolloutTp: {tp} ranks cannot share the layers");
        assert!(text.starts_with(&expected) && text.ends_with("expected one of 1, 2"), "{text}");
    }
}

#[test]
fn norms_over_all_heads_exclude_tensor_parallelism_and_long_rope_bounds_sequences() {
    let misfit = |model: &ModelConfig, completion: u32, mesh: Value| {
        let mut spec = spec();
        spec["workers"] = json!({"count": 2, "mesh": mesh, "device": "Cpu"});
        spec["rollout"]["maxCompletionTokens"] = completion.into();
        let job = validate(&manifest(&spec)).unwrap();
        super::check_model(job.spec(), model).err().map(|misfit| misfit.to_string())
    };
    let over_heads = ModelConfig { qk_norm: QkNorm::AllHeads, ..qwen() };
    assert_eq!(misfit(&over_heads, 64, json!({ "sp": 2 })), None);
    let sliced = misfit(&over_heads, 64, json!({ "rolloutTp": 2 })).unwrap();
    assert!(sliced.starts_with("spec.workers.mesh.rolloutTp: 2 ranks cannot share"), "{sliced}");
    let each_head = ModelConfig { qk_norm: QkNorm::EachHead, ..qwen() };
    assert_eq!(misfit(&each_head, 64, json!({ "sp": 2 })), None);
    let sliced = misfit(&each_head, 64, json!({ "rolloutTp": 2 })).unwrap();
    assert!(sliced.contains("weights of its own") && sliced.ends_with("expected 1"), "{sliced}");
    let mut long = qwen();
    long.ropes[0].scaling = RopeScaling::LongRope {
        short_factors: vec![1.0; 32],
        long_factors: vec![2.0; 32],
        attention_factor: 1.0,
        original_max_position_embeddings: 1024.0,
    };
    assert_eq!(misfit(&long, 64, json!({})), None);
    let too_long = misfit(&long, 4096, json!({})).unwrap();
    assert!(too_long.contains("maxCompletionTokens") && too_long.contains("at most 1024"), "{too_long}");
}

#[test]
fn offloaded_terms_count_while_prefetched_and_on_the_host_of_a_gpu() {
    let num_parameters = 494_032_768_u64;
    let outer = 151_936 * 896 + 896;
    let layer = (num_parameters - outer) / 24;
    let with = |offload: Value, device: &'static str| {
        move |spec: &mut Value| {
            let kl = json!({"placement": "Loss", "coefficient": 0.1});
            spec["algorithm"] = json!({"kind": "PPO", "kl": kl});
            spec["training"]["activationCheckpointing"] = true.into();
            spec["training"]["offload"] = offload.clone();
            spec["workers"]["device"] = device.into();
        }
    };
    let all = || json!({"parameters": true, "optimizer": true, "activations": true});
    let offloaded = |phase, name| term(with(all(), "Cpu"), phase, name);
    for name in ["weights", "optimizer state", "reference weights", "critic", "critic's optimizer state"] {
        assert_eq!(offloaded(Phase::Logprob, name), 0, "{name}");
        let beside_gpu = |offload| planned(with(offload, "Cuda")).memory.unwrap();
        let (away, here) = (beside_gpu(all()), beside_gpu(json!({})));
        let lies = |memory: &MemoryPlan| place(memory, Phase::Logprob, name);
        assert_eq!((lies(&away), lies(&here)), (Some(Place::Host), Some(Place::Device)), "{name}");
        assert_eq!(bytes(&away, Phase::Logprob, name), bytes(&here, Phase::Logprob, name), "{name}");
    }
    assert_eq!(offloaded(Phase::Update, "gathered weights"), 4 * (outer + 2 * layer));
    assert_eq!(offloaded(Phase::Update, "gathered gradients"), 0);
    assert_eq!(offloaded(Phase::Update, "gradients"), 4 * num_parameters);
    assert_eq!(offloaded(Phase::Optimizer, "fetched weights"), 4 * outer);
    assert_eq!(offloaded(Phase::Optimizer, "fetched moments"), 2 * 4 * 151_936 * 896);
    // Sampling needs more than the weight sync. The packed weights are a separate copy.
    assert_eq!(offloaded(Phase::Rollout, "gathered weights"), 0);
    assert_eq!(offloaded(Phase::Rollout, "rollout embeddings"), 4 * 151_936 * 896);
    // Of 24 layer inputs two, beside both sides of the final norm.
    assert_eq!(offloaded(Phase::Update, "activations"), (512 + 7 * 511) * 4 * 896 * (2 + 2));
    // Without sharding and in fp32 a layer is prefetched to the place of its use; otherwise it is cast or
    // gathered there.
    assert_eq!(offloaded(Phase::Update, "fetched weights"), 0);
    let changed = |field: &'static str, value: Value| {
        move |spec: &mut Value| {
            with(all(), "Cpu")(spec);
            spec[field].as_object_mut().unwrap().extend(value.as_object().unwrap().clone());
        }
    };
    let in_bf16 = changed("training", json!({"precision": "Bf16"}));
    assert_eq!(term(in_bf16, Phase::Update, "fetched weights"), 4 * layer);
    let shared = changed("workers", json!({"count": 4, "mesh": {"dpShard": 4}}));
    assert_eq!(term(shared, Phase::Update, "fetched weights"), 4 * layer.div_ceil(4));
    let moments_alone = |name| term(with(json!({"optimizer": true}), "Cpu"), Phase::Update, name);
    assert_eq!((moments_alone("weights"), moments_alone("optimizer state")), (4 * num_parameters, 0));
    assert_eq!(
        (moments_alone("critic"), moments_alone("critic's optimizer state")),
        (4 * (num_parameters + 896), 0)
    );
}

#[test]
fn an_invalid_sequence_parallel_degree_is_refused_with_the_valid_ones() {
    // 14 query heads attend to 2 key heads.
    let misfit = |sp: u32| {
        let mut spec = spec();
        spec["workers"] = json!({"count": 28, "mesh": {"sp": sp}, "device": "Cpu"});
        let job = validate(&manifest(&spec)).unwrap();
        super::check_model(job.spec(), &qwen()).err().map(|misfit| misfit.to_string())
    };
    for sp in [1, 2, 14] {
        assert_eq!(misfit(sp), None);
    }
    for sp in [4, 7, 28] {
        let text = misfit(sp).unwrap();
        let expected = format!("spec.workers.mesh.sp: {sp} ranks");
        assert!(text.starts_with(&expected) && text.ends_with("expected one of 1, 2, 14"), "{text}");
    }
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
