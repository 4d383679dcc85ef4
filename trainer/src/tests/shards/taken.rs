//! The rollout engine and the export read a sharded model unit by unit, with the same result as an unsharded
//! one.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

use rlt_core::engine::{DetokenizeError, Detokenizer};
use rlt_core::sampling::SamplingParams;
use rlt_core::types::TokenId;
use rlt_decoder::{AdapterExport, Export};
use rlt_engine::{Engine, EngineError, EngineOptions, Request};

use super::*;

struct Digits;

impl Detokenizer for Digits {
    fn decode(&self, tokens: &[TokenId]) -> Result<String, DetokenizeError> {
        Ok(format!("{tokens:?}"))
    }
}

/// Tokens of a completion, and their log-probs in the rollout.
pub(super) type Sampled = (Vec<u32>, Vec<f32>);

/// Samples three completions for each of two prompts.
pub(super) fn sample(engine: &mut Engine, policy: DecoderUnits<'_>) -> Result<Vec<Sampled>, EngineError> {
    let request = |prompt: &[TokenId]| Request {
        images: Vec::new(),
        prompt: prompt.into(),
        seeds: vec![1, 2, 3],
        sampling: SamplingParams { ignore_eos: true, ..SamplingParams::default() },
        max_new_tokens: 5,
    };
    let requests = [request(&[3, 1, 4]), request(&[1, 5, 9, 2, 6])];
    let completions = engine.generate(policy, &requests, &Digits, &mut |_| ControlFlow::Continue(()))?;
    Ok(completions
        .into_iter()
        .flatten()
        .map(|completion| (completion.tokens, completion.rollout_logprobs))
        .collect())
}

/// Gives the adapter a nonzero B. A fresh adapter has no effect.
fn put_adapter_to_work(actor: &Actor) {
    set_adapter(actor, 0.25);
}

/// Fills the B matrix of every adapter with `number`.
pub(super) fn set_adapter(actor: &Actor, number: f64) {
    let set = |name: &str, values: Tensor| {
        if name.contains("lora_B") {
            tch::no_grad(|| drop(values.detach().fill_(number)));
        }
    };
    match actor.learner.shards() {
        Some(shards) => {
            let filled = shards.load_shards(|tensor_run, local_shard| {
                set(tensor_run.name, local_shard.shallow_clone());
                Ok::<(), RankError>(())
            });
            filled.unwrap();
        }
        None => {
            actor.learner.decoder().adapter_parameters().into_iter().for_each(|(name, leaf)| set(&name, leaf))
        }
    }
}

fn engine() -> Engine {
    Engine::new(EngineOptions { block_size: 4, ..EngineOptions::default() })
}

#[test]
fn an_engine_samples_the_same_from_a_sharded_and_a_whole_model() {
    let (tied, adapter) = (Case { tied: true, ..FULL }, Case { lora: true, ..FULL });
    let distributed = Case { experts: true, num_experts: 4, ep: 2, ..FULL };
    for (case, size) in [
        (FULL, 3),
        (tied, 2),
        (adapter, 2),
        (Case { compute: Kind::BFloat16, ..tied }, 2),
        (distributed, 4),
        (Case { compute: Kind::BFloat16, ..distributed }, 2),
        (Case { lora: true, ..distributed }, 2),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let drawn = |ranks: &Ranks, dp_shard, offload| {
            let actor = offloaded_actor(case, ranks, dp_shard, offload, folder.path());
            put_adapter_to_work(&actor);
            let mut engine = engine();
            let sharded_bytes = actor.learner.shards().map(ShardedParameters::num_bytes);
            engine.sync_weights(actor.learner.units(), 1).unwrap();
            assert_eq!(
                actor.learner.shards().map(ShardedParameters::num_bytes),
                sharded_bytes,
                "what has come has gone"
            );
            sample(&mut engine, actor.learner.units()).unwrap()
        };
        let whole = drawn(&Ranks::alone(), 1, NONE);
        // Offload changes neither the operands nor the order of the products.
        assert_eq!(drawn(&Ranks::alone(), 1, ALL), whole, "{case:?} offloaded");
        for offload in [NONE, ALL] {
            for samples in on_ranks(size, |ranks| drawn(&ranks, size, offload)) {
                assert_eq!(samples, whole, "{case:?} with {offload:?}");
            }
        }
    }
}

#[test]
fn a_rank_whose_shard_has_changed_since_the_synchronisation_refuses_to_generate() {
    let folder = tempfile::tempdir().unwrap();
    let refuses = |ranks: &Ranks, offload| {
        let mut actor = offloaded_actor(FULL, ranks, ranks.size(), offload, folder.path());
        let mut engine = engine();
        engine.sync_weights(actor.learner.units(), 1).unwrap();
        sample(&mut engine, actor.learner.units()).unwrap();
        update(&mut actor, &batch(), &plan(FULL, 0)).unwrap();
        let error = sample(&mut engine, actor.learner.units()).unwrap_err();
        engine.sync_weights(actor.learner.units(), 2).unwrap();
        sample(&mut engine, actor.learner.units()).unwrap();
        matches!(error, EngineError::StaleWeights { policy_version: 1, .. })
    };
    assert_eq!(on_ranks(2, |ranks| refuses(&ranks, NONE)), [true, true]);
    assert!(refuses(&Ranks::alone(), OffloadSpec { parameters: true, ..NONE }));
}

#[test]
fn a_wrong_all_gather_is_detected_by_the_digests_of_all_ranks() {
    let digest =
        |tensor: &Tensor| Ok::<_, RankError>(tensor.double_value(&[0]).to_bits() ^ tensor.numel() as u64);
    let matches = on_ranks(2, |ranks| {
        let actor = actor(FULL, &ranks, 2);
        let shards = actor.learner.shards().unwrap();
        let mut matches = Vec::new();
        let visited = shards.visit(WeightDtype::Master, |unit| {
            matches.push(shards.matches_shards(unit, digest)?);
            // Rank 1 changes the first value that it has received of rank 0's shard.
            if ranks.rank() == 1 {
                let (_, leaf) = shards.parameters_of(unit).into_iter().next().unwrap();
                let _ = leaf.view(-1).narrow(0, 0, 1).fill_(77.0);
            }
            matches.push(shards.matches_shards(unit, digest)?);
            Ok::<(), RankError>(())
        });
        visited.unwrap();
        matches
    });
    assert!(matches[0].iter().all(|matches_shards| *matches_shards));
    assert!(matches[1].chunks(2).all(|pair| pair == [true, false]), "{:?}", matches[1]);
}

/// Reads all files of a folder, by name.
fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    entries
        .filter(|entry| entry.path().is_file())
        .map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap()))
        .collect()
}

#[test]
fn shards_are_exported_byte_for_byte_as_the_whole() {
    let distributed = Case { experts: true, num_experts: 6, ep: 3, ..FULL };
    for (case, merge_lora) in [
        (FULL, false),
        (Case { tied: true, ..FULL }, false),
        (Case { lora: true, ..FULL }, true),
        (distributed, false),
        (Case { lora: true, ..distributed }, true),
    ] {
        let options = ExportOptions { merge_lora, dtype: Kind::BFloat16 };
        let (whole, shared) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let alone = actor(case, &Ranks::alone(), 1);
        put_adapter_to_work(&alone);
        let alone = alone.learner.decoder();
        alone.export(whole.path(), &options).unwrap();
        if case.lora {
            alone.save_adapter(&whole.path().join("adapter"), None).unwrap();
        }
        on_ranks(3, |ranks| {
            let actor = actor(case, &ranks, 3);
            put_adapter_to_work(&actor);
            let (dir, adapter_dir) = (shared.path(), shared.path().join("adapter"));
            let mut model =
                ranks.is_leader().then(|| Export::begin(actor.learner.decoder(), dir, &options).unwrap());
            let mut adapter = (ranks.is_leader() && case.lora)
                .then(|| AdapterExport::begin(actor.learner.decoder(), &adapter_dir, None).unwrap());
            let visited = actor.learner.units().visit(WeightDtype::Master, |unit| {
                model.iter_mut().for_each(|model| model.write(unit.layer_idx()).unwrap());
                adapter.iter_mut().for_each(|adapter| adapter.write(unit.layer_idx()).unwrap());
                Ok::<(), RankError>(())
            });
            visited.unwrap();
            model.into_iter().for_each(|model| model.finish().unwrap());
            adapter.into_iter().for_each(|adapter| adapter.finish().unwrap());
        });
        for folder in if case.lora { &["", "adapter"][..] } else { &[""] } {
            let (one, other) = (whole.path().join(folder), shared.path().join(folder));
            let (one, other) = (files(&one), files(&other));
            assert!(one.keys().eq(other.keys()) && one.len() >= 2, "{:?}", other.keys());
            one.iter().for_each(|(name, bytes)| assert!(&other[name] == bytes, "{case:?}: {name}"));
        }
    }
}
