//! Tensor-parallel rollouts on ranks that are threads: the completions equal those of one rank with all
//! weights.

use std::error::Error;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::Barrier;
use std::time::Duration;

use rlt_core::sampling::SamplingParams;
use rlt_core::types::Completion;
use rlt_decoder::{Decoder, LoadOptions};
use rlt_engine::{Engine, EngineError, EngineOptions, Request, RolloutStats};
use rlt_models::ModelConfig;
use rlt_parallel::{DecoderUnits, ShardedParameters};
use tch::Kind;

use super::adapter::adapted;
use super::fixture::*;
use super::ranks::{engine, on_ranks};

type Samples = Vec<Vec<Completion>>;

fn sample<'a>(
    engine: &mut Engine,
    policy: impl Into<DecoderUnits<'a>>,
    requests: &[Request],
) -> Result<Samples, EngineError> {
    engine.generate(policy, requests, &Letters, &mut |_| ControlFlow::Continue(()))
}

/// The completions of a tensor-parallel group, the same on each rank, with `options` and in each of several
/// calls.
fn sharded(
    num_shards: usize,
    decoder: impl Fn() -> Decoder + Sync,
    options: &EngineOptions,
    calls: &[Vec<Request>],
) -> (Vec<Samples>, RolloutStats) {
    let mut of_ranks = on_ranks(num_shards, 60, |ranks| {
        let (decoder, mut engine) = (decoder(), engine(&ranks, options.clone()));
        engine.sync_weights(&decoder, 0).unwrap();
        let samples: Vec<Samples> =
            calls.iter().map(|requests| sample(&mut engine, &decoder, requests).unwrap()).collect();
        (samples, RolloutStats { digest_time: Duration::ZERO, ..engine.stats() })
    });
    let (first, stats) = of_ranks.swap_remove(0);
    for (others, _) in of_ranks {
        // All ranks have equal results bit for bit, log-probs included.
        assert_eq!(others, first);
    }
    (first, stats)
}

#[test]
fn tensor_parallel_shards_of_every_family_sample_the_actors_tokens() {
    // The plan refuses to shard heads whose norm runs over all heads, or has separate weights for each head.
    let is_sliced = |family: &&str| !family.starts_with("olmo") && !["cohere", "gpt-oss"].contains(family);
    for family in FAMILIES.into_iter().filter(is_sliced) {
        let exact = decoder_f64(family);
        let whole = decoder(family);
        let calls = [SamplingParams::default(), truncated(), SamplingParams::greedy()]
            .map(|sampling| requests(4, 2, &sampling));
        let greedy = tokens(&generate(&whole, options(), &calls[2]).unwrap());
        for num_shards in [2, 4] {
            let (samples, _) = sharded(num_shards, || decoder(family), &options(), &calls);
            for (requests, samples) in calls.iter().zip(&samples) {
                let case = format!("{family} in {num_shards} shards");
                assert_like_actor(&case, [&whole, &exact], requests, samples);
            }
            assert_eq!(tokens(&samples[2]), greedy, "{family} in {num_shards} shards");
        }
    }
}

/// Each shard holds the columns of A, or the rows of B, that belong to its part of the weight.
#[test]
fn shards_with_an_unmerged_adapter_sample_the_actors_tokens() {
    let beside = EngineOptions { merge_lora: false, ..options() };
    for family in ["llama", "gemma", "phi3", "qwen3-moe", "qwen2-moe"] {
        let (whole, exact) = (adapted(family, Kind::Float), adapted(family, Kind::Double));
        let calls =
            [SamplingParams::default(), SamplingParams::greedy()].map(|sampling| requests(4, 2, &sampling));
        let greedy = tokens(&generate(&whole, beside.clone(), &calls[1]).unwrap());
        for num_shards in [2, 4] {
            let (samples, _) = sharded(num_shards, || adapted(family, Kind::Float), &beside, &calls);
            for (requests, samples) in calls.iter().zip(&samples) {
                let case = format!("{family} in {num_shards} shards");
                assert_like_actor(&case, [&whole, &exact], requests, samples);
            }
            assert_eq!(tokens(&samples[1]), greedy, "{family} in {num_shards} shards");
        }
    }
}

/// The sum of two numbers does not depend on their order, so with two shards the results of a row do not
/// depend on its batch. That also holds after a preemption, and for samples that share a prompt.
#[test]
fn two_tensor_parallel_shards_sample_the_same_in_any_batch_and_after_a_preemption() {
    let calls = [requests(7, 2, &truncated())];
    let run = |options: EngineOptions| sharded(2, || decoder("qwen3"), &options, &calls);
    let (together, roomy) = run(options());
    for (max_num_seqs, max_num_batched_tokens) in [(1, 4096), (3, 20)] {
        let bounds = EngineOptions { max_num_seqs, max_num_batched_tokens, ..options() };
        assert_eq!(run(bounds).0, together);
    }
    let sizes = decoder("qwen3").config;
    // The cache of a shard holds one of the two key heads.
    let token_bytes = 2 * 4 * sizes.num_layers * sizes.head_dim;
    let (preempted, tight) = run(EngineOptions { max_cache_bytes: Some(token_bytes * 48), ..options() });
    assert!(tight.num_preemptions > 0 && roomy.num_preemptions == 0, "{tight:?}");
    let mut same = SameSamples::default();
    same.compare(&together[0], &preempted[0]);
    let whole = generate(&decoder("qwen3"), options(), &calls[0]).unwrap();
    same.compare(&whole, &together[0]);
    same.check();
}

#[test]
fn a_stop_string_ends_a_sample_at_the_same_token_with_tensor_parallelism() {
    let unstopped =
        generate(&decoder("llama"), options(), &requests(3, 1, &SamplingParams::greedy())).unwrap();
    let stop = unstopped[2][0].text[2..4].to_owned();
    let sampling = SamplingParams { stop: vec![stop], ..SamplingParams::greedy() };
    let calls = [requests(3, 1, &sampling)];
    let whole = generate(&decoder("llama"), options(), &calls[0]).unwrap();
    assert!(whole[2][0].tokens.len() < unstopped[2][0].tokens.len());
    let (samples, _) = sharded(2, || decoder("llama"), &options(), &calls);
    let ends = |samples: &Samples| -> Vec<_> {
        let ends = samples.iter().flatten();
        ends.map(|one| (one.tokens.clone(), one.text.clone(), one.finish_reason)).collect()
    };
    assert_eq!(ends(&samples[0]), ends(&whole));
}

/// The adapter is merged before the weights are sharded, from a model that each rank holds in full or in FSDP
/// shards.
#[test]
fn an_adapter_is_folded_into_tensor_parallel_shards_of_the_whole_and_of_shards() {
    let adapted = |family: &str| {
        let mut decoder = decoder(family);
        decoder.load_adapter(&folder(family).join("adapter")).unwrap();
        decoder
    };
    for family in ["llama", "gemma"] {
        let calls = [requests(3, 2, &SamplingParams::default())];
        let (samples, _) = sharded(2, || adapted(family), &options(), &calls);
        let mut exact = decoder_f64(family);
        exact.load_adapter(&folder(family).join("adapter")).unwrap();
        assert_like_actor(family, [&adapted(family), &exact], &calls[0], &samples[0]);
        let of_shards = on_ranks(2, 60, |ranks| {
            let decoder = adapted(family);
            let shards = ShardedParameters::new(&decoder, Rc::new(ranks.on_mesh(2).unwrap()), None).unwrap();
            let (parts, mut engine) = (DecoderUnits::new(&decoder, Some(&shards)), engine(&ranks, options()));
            engine.sync_weights(parts, 0).unwrap();
            sample(&mut engine, parts, &calls[0]).unwrap()
        });
        assert_eq!(of_shards, [samples[0].clone(), samples[0].clone()], "{family}");
    }
}

/// bf16 rounds each activation to 8 bits, and each rank's partial sum of a product, too.
#[test]
fn tensor_parallel_bf16_rollouts_stay_as_close_to_the_actor_as_full_ones() {
    let bf16 = LoadOptions { param_dtype: Kind::BFloat16, compute: Kind::BFloat16, ..LoadOptions::default() };
    let decoder = || Decoder::load(&folder("qwen3"), &bf16).unwrap();
    let calls = [requests(5, 2, &SamplingParams::default())];
    for num_shards in [2, 4] {
        let (samples, _) = sharded(num_shards, decoder, &options(), &calls);
        let error = actor_error(&decoder(), &calls[0], &samples[0]);
        assert!(error <= 0.1, "{num_shards} shards: {error:.1e}");
    }
}

#[test]
fn a_tensor_parallel_shard_takes_its_share_of_the_memory() {
    let config = ModelConfig::from_json(&serde_json::json!({
        "architectures": ["LlamaForCausalLM"], "vocab_size": 256, "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32,
    }))
    .unwrap();
    let decoder = || Decoder::from_config(&config, 5, &LoadOptions::default()).unwrap();
    let calls = [requests(2, 2, &SamplingParams::greedy())];
    let mut engine = Engine::new(options());
    engine.sync_weights(&decoder(), 0).unwrap();
    sample(&mut engine, &decoder(), &calls[0]).unwrap();
    let whole = engine.stats();
    let planned = |num_shards: usize| {
        let layers = 0..config.num_layers;
        let layers = layers.map(|layer_idx| config.matrices_of_layer_of_rank(layer_idx, num_shards));
        let head = config.vocab_size / num_shards * config.hidden_size;
        4 * (layers.sum::<u64>() as usize + head)
    };
    assert_eq!(whole.weight_bytes, planned(1));
    for num_shards in [2, 4] {
        let (_, shard) = sharded(num_shards, decoder, &options(), &calls);
        assert_eq!(shard.weight_bytes, planned(num_shards));
        assert_eq!(shard.weight_bytes * num_shards, whole.weight_bytes);
        assert_eq!(shard.cache_bytes * num_shards, whole.cache_bytes);
    }
}

#[test]
fn bytes_of_a_tensor_parallel_rollout_are_those_of_its_all_reduces_and_logits() {
    let num_shards = 2;
    let requests = requests(6, 3, &SamplingParams::default());
    let of_ranks = on_ranks(num_shards, 60, |ranks| {
        let (decoder, mut engine) = (decoder("llama"), engine(&ranks, options()));
        engine.sync_weights(&decoder, 0).unwrap();
        let before = ranks.traffic();
        sample(&mut engine, &decoder, &requests).unwrap();
        let (sizes, stats) = (decoder.config, engine.stats());
        let num_sums = 2 * sizes.num_layers * (stats.num_prefilled_tokens + stats.num_tokens);
        let num_logits = stats.num_tokens * sizes.vocab_size / num_shards;
        (ranks.traffic().since(before).sent, 4 * (num_sums * sizes.hidden_size + num_logits))
    });
    // For each sum, each of two ranks sends one half twice.
    let (sent, needed) = of_ranks.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1 as u64));
    let ratio = sent as f64 / needed as f64;
    assert!((1.0..1.05).contains(&ratio), "{sent} bytes, {needed} at least: {ratio}");
}

#[test]
fn a_stop_request_at_one_rank_stops_its_whole_tensor_parallel_group() {
    let requests = requests(3, 1, &SamplingParams::greedy());
    let num_steps = on_ranks(2, 60, |ranks| {
        let (decoder, mut engine) = (decoder("llama"), engine(&ranks, options()));
        engine.sync_weights(&decoder, 0).unwrap();
        let mut num_steps = 0;
        let ended = engine.generate(&decoder, &requests, &Letters, &mut |_| {
            num_steps += 1;
            let is_asked = ranks.rank() == 1 && num_steps == 3;
            if is_asked { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert!(matches!(ended, Err(EngineError::Interrupted)), "{ended:?}");
        num_steps
    });
    assert_eq!(num_steps, [3, 3]);
}

#[test]
fn ranks_that_draw_different_tokens_end_in_that_step() {
    let steps = on_ranks(2, 60, |ranks| {
        let (decoder, mut engine) = (decoder("llama"), engine(&ranks, options()));
        engine.sync_weights(&decoder, 0).unwrap();
        let mut requests = requests(1, 8, &SamplingParams::default());
        requests[0].seeds[ranks.rank()] += 1;
        match sample(&mut engine, &decoder, &requests) {
            Err(EngineError::Disagreement { step }) => step,
            other => panic!("{other:?}"),
        }
    });
    assert!(steps[0] == steps[1] && steps[0] <= requests(1, 8, &SamplingParams::default())[0].max_new_tokens);
}

#[test]
fn a_rank_that_misses_an_all_reduce_is_named() {
    let requests = requests(1, 1, &SamplingParams::greedy());
    let end = Barrier::new(2);
    let said = on_ranks(2, 10, |ranks| {
        let (decoder, mut engine) = (decoder("llama"), engine(&ranks, options()));
        engine.sync_weights(&decoder, 0).unwrap();
        let failed = (ranks.rank() == 0).then(|| sample(&mut engine, &decoder, &requests).unwrap_err());
        end.wait();
        let cause = failed.as_ref().and_then(Error::source).and_then(Error::source);
        cause.map(ToString::to_string).unwrap_or_default()
    });
    let words = ["all-reduce", "of group rollout 0 of 2 shards", "rank 1"];
    assert!(words.iter().all(|word| said[0].contains(word)), "{said:?}");
}
