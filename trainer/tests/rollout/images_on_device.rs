//! Images on a device: the rollout samples what the CPU samples, in as few launches and copies a step as from
//! text, and the actor's log-probs and gradients are transformers', with a frozen and a trained tower.

use rlt_core::sampling::SamplingParams;
use rlt_core::types::TokenId;
use rlt_decoder::Adapter;
use rlt_engine::EngineOptions;

use super::fixture::{SameSamples, options};
use super::vision::{Fixture, MODELS, TOLERANCE, actor, check_gradients, generate, largest, request};
use super::{DEVICE, on_device, sampled};

/// Prompts are prefilled at once or in chunks that split images, and with a cache so small that sequences are
/// preempted.
#[test]
fn prompts_with_images_sample_the_same_tokens_on_a_device_and_on_the_cpu() {
    let test = "images_on_device::prompts_with_images_sample_the_same_tokens_on_a_device_and_on_the_cpu";
    on_device(test, || {
        for name in MODELS {
            let mut same = SameSamples::default();
            let fixture = Fixture::open(name);
            let (cpu, device) = (fixture.load(), fixture.load_on(DEVICE));
            let prompts = [0, 1].map(|idx| fixture.prompt(idx));
            let requests = prompts.map(|prompt| request(&prompt, 24, SamplingParams::default(), 12));
            let (expected, _) = generate(&cpu, options(), &requests);
            let config = &cpu.config;
            let token_bytes = 4 * 2 * config.num_layers * config.num_kv_heads * config.head_dim;
            let tight = EngineOptions { max_cache_bytes: Some(60 * 4 * token_bytes), ..options() };
            for options in
                [options(), EngineOptions { max_num_batched_tokens: 7, ..options() }, tight.clone()]
            {
                let is_tight = options.max_cache_bytes.is_some();
                let (samples, stats) = sampled(&device, options, &requests);
                assert_eq!(stats.num_preemptions > 0, is_tight, "{name}");
                same.compare(&expected, &samples);
            }
            same.check();
        }
    });
}

/// Random weights make each of the 128 tokens equally likely, so 48 of 1536 draws would be one of the 4.
#[test]
fn a_device_never_samples_a_token_of_images_and_their_borders() {
    on_device("images_on_device::a_device_never_samples_a_token_of_images_and_their_borders", || {
        for name in MODELS {
            let fixture = Fixture::open(name);
            let device = fixture.load_on(DEVICE);
            let vision = device.config.vision.clone().unwrap();
            let banned =
                [vision.image_token, vision.video_token, vision.vision_start_token, vision.vision_end_token];
            let requests = [request(&fixture.prompt(0), 96, SamplingParams::default(), 16)];
            let (completions, _) = sampled(&device, options(), &requests);
            let drawn: Vec<TokenId> =
                completions.iter().flatten().flat_map(|sample| sample.tokens.iter().copied()).collect();
            assert!(drawn.len() > 1000, "{name}: {} tokens", drawn.len());
            assert!(!drawn.iter().any(|token| banned.contains(token)), "{name}");
        }
    });
}

#[test]
fn a_decoding_step_costs_the_same_after_images_and_after_text() {
    on_device("images_on_device::a_decoding_step_costs_the_same_after_images_and_after_text", || {
        for name in MODELS {
            let fixture = Fixture::open(name);
            let device = fixture.load_on(DEVICE);
            let prompt = fixture.prompt(0);
            let text = request(&prompt, 4, SamplingParams::default(), 6);
            // The text prompt has the same length, and no image tokens.
            let plain = vec![5; prompt.tokens.len()];
            let cost = |images: bool, num_tokens: usize, uses_graphs: bool| {
                let mut own = text.clone();
                if !images {
                    (own.prompt, own.images) = (plain.as_slice().into(), Vec::new());
                }
                own.max_new_tokens = num_tokens;
                let options = EngineOptions { uses_graphs, ..options() };
                let before = rlt_devices::driver::counts().unwrap();
                sampled(&device, options, &[own]);
                let after = rlt_devices::driver::counts().unwrap();
                [
                    after.launches - before.launches,
                    after.graph_launches - before.graph_launches,
                    after.host_to_device - before.host_to_device,
                    after.device_to_host - before.device_to_host,
                    after.waits - before.waits,
                ]
            };
            // The first rollout computes the image features, which later ones reuse.
            cost(true, 1, false);
            for uses_graphs in [true, false] {
                let [with_images, without] = [true, false].map(|images| {
                    let (short, long) = (cost(images, 6, uses_graphs), cost(images, 8, uses_graphs));
                    std::array::from_fn::<u64, 5, _>(|idx| long[idx] - short[idx])
                });
                assert_eq!(with_images, without, "{name}, graphs: {uses_graphs}");
                assert_eq!(with_images[1..], [2 * u64::from(uses_graphs), 2, 2, 2], "{name}");
            }
        }
    });
}

#[test]
fn log_probs_and_gradients_with_images_on_a_device_are_those_of_transformers() {
    let test = "images_on_device::log_probs_and_gradients_with_images_on_a_device_are_those_of_transformers";
    on_device(test, || {
        for name in MODELS {
            let fixture = Fixture::open(name);
            let (batch, expected) = (fixture.batch(), fixture.logprobs());
            for (is_trained, checkpointing) in [(false, false), (true, false), (true, true)] {
                let mut decoder = fixture.load_on(DEVICE);
                if is_trained {
                    decoder.train_vision();
                }
                let actor = actor(decoder, checkpointing);
                let scores = actor.score(&batch, Adapter::On, usize::MAX).unwrap();
                let error = largest(&scores.logprobs, &expected);
                assert!(error <= TOLERANCE, "{name}: log-probs differ by {error:.1e}");
                check_gradients(&fixture, &actor, &batch, usize::MAX);
            }
        }
    });
}
