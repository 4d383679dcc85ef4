//! Compares vision-language models with transformers on the fixtures of `fixtures/vision/make.py`: positions,
//! the tower, log-probs, gradients of the text model, greedy completions of prompts with several images.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "vision/adapter.rs"]
mod adapter;
#[path = "vision/fixture.rs"]
mod fixture;
#[path = "vision/trained.rs"]
mod trained;

use std::collections::BTreeSet;
use std::path::Path;
use std::rc::Rc;

use rlt_core::images::ImageLayout;
use rlt_core::sampling::SamplingParams;
use rlt_core::types::TokenId;
use rlt_decoder::{Adapter, Decoder, ExportOptions, LoadOptions, Weights};
use rlt_engine::EngineOptions;
use rlt_parallel::ShardedParameters;
use rlt_trainer::roles::actor::Actor;
use rlt_trainer::roles::optim::{AdamW, AdamWOptions};
use tch::Tensor;

use fixture::{
    Fixture, MODELS, TOLERANCE, actor, batch_of, check_gradients, generate, largest, max_error, on_ranks,
    options, request, step,
};

#[test]
fn positions_count_rows_and_columns_of_images_as_transformers_does() {
    for name in MODELS {
        let fixture = Fixture::open(name);
        let vision = fixture.load().config.vision.unwrap();
        for idx in [0, 1] {
            let prompt = fixture.prompt(idx);
            let grids = prompt.images.iter().map(|image| image.grid);
            let layout =
                ImageLayout::new(&prompt.tokens, grids, vision.image_token, vision.spatial_merge_size)
                    .unwrap();
            let got = Tensor::from_slice(&layout.positions.concat()).view([3, -1]);
            assert!(got.equal(fixture.expected(&format!("positions.{idx}"))), "{name}, prompt {idx}");
        }
    }
}

#[test]
fn the_tower_computes_what_transformers_computes() {
    for name in MODELS {
        let fixture = Fixture::open(name);
        let decoder = fixture.load();
        for idx in [0, 1] {
            let features = decoder.image_features(&fixture.prompt(idx).images, Adapter::On);
            let error = max_error(&features, fixture.expected(&format!("features.{idx}")));
            println!("{name}, prompt {idx}: features differ by {error:.1e}");
            assert!(error <= TOLERANCE, "{name}, prompt {idx}: {error:.1e}");
        }
    }
}

/// Sequences are packed into one micro-batch, or each has its own.
#[test]
fn logprobs_and_gradients_are_those_of_transformers_however_prompts_are_packed() {
    for name in MODELS {
        let fixture = Fixture::open(name);
        let (batch, expected) = (fixture.batch(), fixture.logprobs());
        for (max_tokens, checkpointing) in [(usize::MAX, false), (usize::MAX, true), (90, false)] {
            let actor = actor(fixture.load(), checkpointing);
            let scores = actor.score(&batch, Adapter::On, max_tokens).unwrap();
            let error = largest(&scores.logprobs, &expected);
            assert!(error <= TOLERANCE, "{name}: log-probs differ by {error:.1e}");
            let by_gradient = check_gradients(&fixture, &actor, &batch, max_tokens);
            println!("{name}, {max_tokens} tokens: log-probs {error:.1e}, gradients {by_gradient:.1e}");
        }
    }
}

/// Prompts are prefilled at once, and in chunks that split images.
#[test]
fn greedy_completions_are_those_of_transformers() {
    for name in MODELS {
        let fixture = Fixture::open(name);
        let decoder = fixture.load();
        for max_num_batched_tokens in [4096, 7] {
            let options = EngineOptions { block_size: 4, max_num_batched_tokens, ..EngineOptions::default() };
            let prompts = [0, 1].map(|idx| fixture.prompt(idx));
            let requests = prompts.map(|prompt| request(&prompt, 1, SamplingParams::greedy(), 8));
            let (completions, _) = generate(&decoder, options, &requests);
            for (idx, samples) in completions.iter().enumerate() {
                assert_eq!(
                    samples[0].tokens,
                    fixture.tokens(&format!("greedy.{idx}")),
                    "{name}, prompt {idx}"
                );
            }
        }
    }
}

/// Random weights make each of the 128 tokens equally likely, so 96 of 3072 draws would be one of the 4.
#[test]
fn the_rollout_never_samples_a_token_of_images_and_their_borders() {
    for name in MODELS {
        let fixture = Fixture::open(name);
        let decoder = fixture.load();
        let vision = decoder.config.vision.clone().unwrap();
        let banned =
            [vision.image_token, vision.video_token, vision.vision_start_token, vision.vision_end_token];
        let requests = [0, 1].map(|idx| request(&fixture.prompt(idx), 96, SamplingParams::default(), 16));
        let options = EngineOptions { block_size: 4, ..EngineOptions::default() };
        let (completions, _) = generate(&decoder, options, &requests);
        let sampled: Vec<TokenId> =
            completions.iter().flatten().flat_map(|sample| sample.tokens.iter().copied()).collect();
        assert!(sampled.len() > 1000, "{name}: {} tokens", sampled.len());
        assert!(!sampled.iter().any(|token| banned.contains(token)), "{name}");
    }
}

/// Sequences are preempted and computed again, because the cache is small.
#[test]
fn the_rollout_reports_the_log_probs_of_the_actor() {
    for name in MODELS {
        let fixture = Fixture::open(name);
        let decoder = fixture.load();
        let prompts = [0, 1].map(|idx| fixture.prompt(idx));
        let requests = prompts.each_ref().map(|prompt| request(prompt, 4, SamplingParams::default(), 12));
        // 40 blocks of 4 tokens, f32 keys and values.
        let config = &decoder.config;
        let token_bytes = 4 * 2 * config.num_layers * config.num_kv_heads * config.head_dim;
        let max_cache_bytes = Some(40 * 4 * token_bytes);
        let options = EngineOptions { block_size: 4, max_cache_bytes, ..EngineOptions::default() };
        let (completions, num_preemptions) = generate(&decoder, options, &requests);
        assert!(num_preemptions > 0, "the cache is small");
        let (batch, rollout) = batch_of(&completions, &prompts);
        let scores = actor(decoder, false).score(&batch, Adapter::On, usize::MAX).unwrap();
        let error = largest(&rollout, &scores.logprobs);
        println!("{name}: rollout and actor differ by {error:.1e}");
        assert!(error <= 2e-5, "{name}: rollout and actor differ by {error:.1e}");
    }
}

#[test]
fn an_export_contains_the_tower_unchanged_and_computes_the_same() {
    for name in MODELS {
        let fixture = Fixture::open(name);
        let decoder = fixture.load();
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        decoder.export(folder, &ExportOptions { merge_lora: true, dtype: tch::Kind::Float }).unwrap();
        let names = |folder: &Path| -> BTreeSet<String> {
            let stored = Tensor::read_safetensors(folder.join("model.safetensors")).unwrap();
            stored.into_iter().map(|(name, _)| name).collect()
        };
        assert_eq!(names(folder), names(&fixture.dir), "{name}: names as transformers writes them");
        let again = Decoder::load(folder, &LoadOptions::default()).unwrap();
        assert_eq!(again.config, decoder.config);
        let prompt = fixture.prompt(0);
        assert!(
            again
                .image_features(&prompt.images, Adapter::On)
                .equal(&decoder.image_features(&prompt.images, Adapter::On))
        );
        let batch = fixture.batch();
        let logprobs =
            |decoder| actor(decoder, false).score(&batch, Adapter::On, usize::MAX).unwrap().logprobs;
        let trainable = LoadOptions { trainable: true, ..LoadOptions::default() };
        let again = Decoder::load(folder, &trainable).unwrap();
        assert_eq!(logprobs(again), logprobs(decoder));
    }
}

/// Weights have the names that transformers has used in memory since 4.52, or those of other checkpoints.
/// Some checkpoints, such as Qwen3-VL's, use the former on disk, too.
#[test]
fn weights_under_either_names_are_the_same_model() {
    for name in MODELS {
        let fixture = Fixture::open(name);
        let folder = tempfile::tempdir().unwrap();
        std::fs::copy(fixture.dir.join("config.json"), folder.path().join("config.json")).unwrap();
        let of_memory = |name: &str| match name.strip_prefix("model.") {
            Some(rest) => format!("model.language_model.{rest}"),
            None if name.starts_with("visual.") => format!("model.{name}"),
            None => name.to_owned(),
        };
        let of_disk =
            |name: &str| name.replace("model.language_model.", "model.").replace("model.visual.", "visual.");
        let stored = Tensor::read_safetensors(fixture.dir.join("model.safetensors")).unwrap();
        let are_of_disk = stored.iter().any(|(name, _)| name.starts_with("visual."));
        assert_eq!(are_of_disk, name != "qwen3-vl", "names as published");
        let renamed = |name: String| if are_of_disk { of_memory(&name) } else { of_disk(&name) };
        let stored: Vec<_> = stored.into_iter().map(|(name, tensor)| (renamed(name), tensor)).collect();
        Tensor::write_safetensors(&stored, folder.path().join("model.safetensors")).unwrap();
        let again = Decoder::load(folder.path(), &LoadOptions::default()).unwrap();
        let images = fixture.prompt(0).images.clone();
        let decoder = fixture.load();
        assert!(
            again.image_features(&images, Adapter::On).equal(&decoder.image_features(&images, Adapter::On))
        );
        for ((name, got), (_, expected)) in again.named_parameters().iter().zip(decoder.named_parameters()) {
            assert!(got.equal(&expected), "{name}");
        }
    }
}

/// Gradients of the full batch are gathered from two ranks that hold a shard each.
#[test]
fn two_ranks_with_shards_apply_the_update_of_one() {
    const NAME: &str = "qwen2.5-vl";
    let whole = step(&mut actor(Fixture::open(NAME).load(), false), NAME);
    let sharded = on_ranks(2, |ranks| {
        let weights = Weights::open(&Fixture::open(NAME).dir).unwrap();
        let trainable = LoadOptions { trainable: true, ..LoadOptions::default() };
        let mut decoder = Decoder::meta(weights.config(), &trainable).unwrap();
        decoder.read_vision(&weights).unwrap();
        let shards = ShardedParameters::new(&decoder, Rc::new(ranks.on_mesh(2).unwrap()), None).unwrap();
        shards.read(&weights).unwrap();
        let optimizer = AdamW::new(shards.local_shards(), AdamWOptions::default()).unwrap();
        step(&mut Actor::new(decoder, optimizer, options(false), ranks.clone()).with_shards(shards), NAME)
    });
    for (norm, logprobs) in sharded {
        let error = largest(&logprobs, &whole.1);
        println!("gradient norms {norm} and {}, log-probs differ by {error:.1e}", whole.0);
        assert!((norm - whole.0).abs() <= 1e-4 * whole.0 && error <= TOLERANCE, "{norm}, {error:.1e}");
    }
}
