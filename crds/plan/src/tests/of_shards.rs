//! Tests of the memory of ranks that shard a model, a sequence or the rollout's weights, and of offloaded
//! tensors.

use serde_json::{Value, json};

use super::{MemoryPlan, Phase, Place, bytes, place, planned, term};

#[test]
fn fsdp_ranks_store_a_shard_and_gather_two_layers_and_the_root_unit() {
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
    // Weights and both moments are sharded. The packed weights are the only full copy of the model.
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
            // The budget is half of a group's tokens, which is no integer number of samples.
            spec["training"]["maxTokensPerMicroBatch"] = ((512 + 8 * 511) / 2).into();
        }
    };
    let mesh = planned(sharing(2)).mesh;
    assert_eq!((mesh.dp_replicate, mesh.dp_shard, mesh.sp, mesh.world_size()), (1, 2, 2, 4));
    let passes = |sp| planned(sharing(sp)).batch.max_micro_batches_per_update;
    // Three samples fit next to a prompt; all eight fit into twice the budget.
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
    // 8 prompts of 8 samples for two copies of the packed weights.
    assert_eq!((planned(sampling(1)).batch.concurrent_sequences, batch.concurrent_sequences), (16, 32));
    let of = |rollout_tp, name| term(sampling(rollout_tp), Phase::Rollout, name);
    let norms = 24 * 2 * 896 + 896;
    assert_eq!(of(1, "rollout weights"), 4 * (494_032_768 - norms));
    assert_eq!(of(2, "rollout weights") * 2, of(1, "rollout weights"));
    // Twice the sequences, with half of the key heads each.
    let blocks =
        |rollout_tp| of(rollout_tp, "KV cache") / (4 * 2 * 24 * 64 * 16 * (2 / u64::from(rollout_tp)));
    assert!(blocks(2) > blocks(1) * 19 / 10, "{} and {}", blocks(2), blocks(1));
    assert_eq!(of(2, "sampling logits"), 2 * of(1, "sampling logits"));
    let weights = |rollout_tp| term(sampling(rollout_tp), Phase::Update, "weights");
    assert_eq!(weights(1), weights(2), "what is trained is as it was");
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
    // Sampling needs more memory than weight sync. The packed weights are a separate copy.
    assert_eq!(offloaded(Phase::Rollout, "gathered weights"), 0);
    assert_eq!(offloaded(Phase::Rollout, "rollout embeddings"), 4 * 151_936 * 896);
    // Two of the 24 layer inputs are on the device, and input and output of the final norm.
    assert_eq!(offloaded(Phase::Update, "activations"), (512 + 7 * 511) * 4 * 896 * (2 + 2));
    // Without sharding and in fp32 a layer is prefetched into the buffer that compute reads. Otherwise a
    // prefetched shard is cast or gathered into that buffer.
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
