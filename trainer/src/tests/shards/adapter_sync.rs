//! Weight sync of an unmerged adapter: the tensors that ranks with a sharded model gather, and the bytes that
//! they send.

use rlt_api::spec::LoraSpec;
use rlt_engine::{Engine, EngineOptions};
use rlt_models::ModelConfig;
use rlt_plan::WeightSync;

use super::taken::{Sampled, sample, set_adapter};
use super::*;

fn engine() -> Engine {
    Engine::new(EngineOptions { block_size: 4, merge_lora: false, ..EngineOptions::default() })
}

/// Returns samples after a full sync, and after a sync of a changed adapter alone.
fn before_and_after(actor: &Actor) -> [Vec<Sampled>; 2] {
    let mut engine = engine();
    let sharded_bytes = actor.learner.shards().map(ShardedParameters::num_bytes);
    let samples = [0.25, -0.5].map(|number| {
        set_adapter(actor, number);
        engine.sync_weights(actor.learner.units(), 1).unwrap();
        assert_eq!(
            actor.learner.shards().map(ShardedParameters::num_bytes),
            sharded_bytes,
            "what has come has gone"
        );
        let samples = sample(&mut engine, actor.learner.units()).unwrap();
        engine.sleep();
        samples
    });
    let adapter: usize =
        actor.learner.decoder().trainable_parameters().iter().map(|(_, leaf)| 4 * leaf.numel()).sum();
    assert_eq!(engine.synced_bytes(), adapter);
    samples
}

#[test]
fn an_unmerged_adapter_is_gathered_from_shards_like_a_full_one() {
    let adapter = Case { lora: true, ..FULL };
    let quantized = Case { quantized: Some((QuantizationFormat::Nf4, false)), ..adapter };
    for case in [adapter, Case { compute: Kind::BFloat16, tied: true, ..adapter }, quantized] {
        let folder = tempfile::tempdir().unwrap();
        let drawn = |ranks: &Ranks, dp_shard, offload| {
            before_and_after(&offloaded_actor(case, ranks, dp_shard, offload, folder.path()))
        };
        let whole = drawn(&Ranks::alone(), 1, NONE);
        assert_ne!(whole[0], whole[1], "{case:?}: the adapter takes part");
        assert_eq!(drawn(&Ranks::alone(), 1, ALL), whole, "{case:?} offloaded");
        for (size, offload) in [(2, NONE), (2, ALL), (3, NONE), (4, NONE)] {
            for samples in on_ranks(size, |ranks| drawn(&ranks, size, offload)) {
                assert_eq!(samples, whole, "{case:?} on {size} ranks with {offload:?}");
            }
        }
    }
}

/// Creates a decoder whose sizes four ranks divide evenly.
fn even(spec: &LoraSpec) -> Decoder {
    let config = ModelConfig::from_json(&serde_json::json!({
        "architectures": ["Qwen3ForCausalLM"], "vocab_size": 40, "hidden_size": 16, "intermediate_size": 24,
        "num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
        "max_position_embeddings": 32, "initializer_range": 0.1, "tie_word_embeddings": true,
    }));
    let options = LoadOptions { trainable: false, ..LoadOptions::default() };
    let mut decoder = Decoder::from_config(&config.unwrap(), 7, &options).unwrap();
    decoder.attach_lora_spec(spec, 3).unwrap();
    decoder
}

#[test]
fn ranks_send_the_bytes_that_the_plan_names_and_the_digests_that_hold_them() {
    let spec = LoraSpec { rank: 4, alpha: 8.0, ..LoraSpec::default() };
    for size in [1, 2, 4] {
        let sent = on_ranks(size, |ranks| {
            let options = ActorOptions { ..actor_options(FULL) };
            let actor = actor_with_offload(even(&spec), options, &ranks, (size, 1), &Offload::default());
            let mut engine = engine();
            let mut sent = |version| {
                set_adapter(&actor, 0.25);
                let before = ranks.traffic();
                engine.sync_weights(actor.learner.units(), version).unwrap();
                (ranks.traffic().since(before).sent, engine.synced_bytes() as u64)
            };
            [sent(1), sent(2), sent(3)]
        });
        let planned = WeightSync::of_adapter(&spec, &even(&spec).config, size as u64);
        // Bytes of a digest for each of three layers, and of a flag whether the base has changed.
        let words = 8 * (3 + 1) * (size as u64 - 1);
        for [first, second, third] in sent {
            assert_eq!(second, (planned.sent_bytes + words, planned.bytes), "{size} ranks");
            assert_eq!(second, third, "{size} ranks");
            assert!(first.1 > second.1 && (size == 1 || first.0 > 2 * second.0), "{size} ranks: {first:?}");
        }
    }
}
