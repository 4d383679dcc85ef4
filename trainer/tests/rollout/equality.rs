//! Equality of tokens and log-probs on every path: dense or paged, alone or batched, shared or not.

use rlt_core::sampling::SamplingParams;
use rlt_decoder::{Adapter, Decoder, LoadOptions};
use rlt_engine::{Engine, EngineOptions, Request};
use tch::{Kind, Tensor};

use super::fixture::*;

#[test]
fn rollout_logprobs_are_the_actors() {
    for family in FAMILIES {
        let (decoder, exact) = (decoder(family), decoder_f64(family));
        for sampling in [SamplingParams::default(), truncated(), SamplingParams::greedy()] {
            let requests = requests(6, 3, &sampling);
            let completions = generate(&decoder, options(), &requests).unwrap();
            assert_like_actor(
                &format!("{family}, {sampling:?}"),
                [&decoder, &exact],
                &requests,
                &completions,
            );
        }
    }
}

#[test]
fn paged_greedy_continuations_are_those_of_transformers() {
    for family in FAMILIES {
        let expected = Tensor::read_safetensors(folder(family).join("expected.safetensors")).unwrap();
        let named = |name: &str| {
            let tensor = &expected.iter().find(|(n, _)| n == name).unwrap().1;
            Vec::<i64>::try_from(tensor).unwrap().into_iter().map(|token| token as u32).collect::<Vec<u32>>()
        };
        let greedy = named("greedy");
        let request = Request {
            images: Vec::new(),
            prompt: named("tokens")[..6].into(),
            seeds: vec![0],
            sampling: SamplingParams::greedy(),
            max_new_tokens: greedy.len(),
        };
        let completions = generate(&decoder(family), options(), &[request]).unwrap();
        assert_eq!(completions[0][0].tokens, greedy, "{family}");
    }
}

/// Equality to the bit: packed products, norms and attention compute each row independently, so on the CPU in
/// f32 a sample does not depend on its batch.
#[test]
fn a_sample_is_the_same_alone_and_in_any_batch() {
    for family in FAMILIES {
        let decoder = decoder(family);
        for sampling in [SamplingParams::default(), truncated(), SamplingParams::greedy()] {
            let requests = requests(7, 2, &sampling);
            let together = generate(&decoder, options(), &requests).unwrap();
            for (max_num_seqs, max_num_batched_tokens) in [(1, 4096), (3, 20), (5, 4096)] {
                let bounds = EngineOptions { max_num_seqs, max_num_batched_tokens, ..options() };
                assert_eq!(together, generate(&decoder, bounds, &requests).unwrap(), "{family}");
            }
        }
    }
}

/// Weights are rounded only once, from their parameter dtype to the engine's.
#[test]
fn an_engine_of_another_precision_samples_like_one_of_a_policy_in_that_precision() {
    let requests = requests(7, 2, &truncated());
    for (family, kind) in FAMILIES.into_iter().zip([Kind::BFloat16, Kind::Half].into_iter().cycle()) {
        let load = LoadOptions { compute: kind, ..LoadOptions::default() };
        let narrow = Decoder::load(&folder(family), &load).unwrap();
        let expected = generate(&narrow, options(), &requests).unwrap();
        let bounds = EngineOptions { compute: Some(kind), ..options() };
        assert_eq!(generate(&decoder(family), bounds, &requests).unwrap(), expected, "{family} in {kind:?}");
    }
}

#[test]
fn a_shared_prompt_equals_separate_prompts() {
    for family in FAMILIES {
        let decoder = decoder(family);
        let grouped = requests(5, 4, &SamplingParams::default());
        let alone = |(request, seed): (&Request, u64)| Request { seeds: vec![seed], ..request.clone() };
        let samples =
            grouped.iter().flat_map(|request| request.seeds.iter().map(move |&seed| (request, seed)));
        let singles: Vec<_> = samples.map(alone).collect();
        let mut engine = Engine::new(options());
        engine.sync_weights(&decoder, 0).unwrap();
        let mut run = |requests: &[Request]| {
            let completions = engine
                .generate(&decoder, requests, &Letters, &mut |_| std::ops::ControlFlow::Continue(()))
                .unwrap();
            (completions.into_iter().flatten().collect::<Vec<_>>(), engine.stats().num_prefilled_tokens)
        };
        let (shared, shared_prefill) = run(&grouped);
        let (unshared, unshared_prefill) = run(&singles);
        assert_eq!(shared, unshared, "{family}");
        assert_eq!(unshared_prefill, 4 * shared_prefill, "each prompt is prefilled once");
    }
}

/// Attention adds block by block, so another block size adds in another order.
#[test]
fn a_sample_does_not_depend_on_the_size_of_a_block() {
    let mut same = SameSamples::default();
    for family in FAMILIES {
        let decoder = decoder(family);
        let requests = requests(7, 2, &truncated());
        let of_four = generate(&decoder, options(), &requests).unwrap();
        for block_size in [1, 16] {
            let bounds = EngineOptions { block_size, ..options() };
            same.compare(&of_four, &generate(&decoder, bounds, &requests).unwrap());
        }
    }
    same.check();
}

/// The later tokens of a prompt attend to blocks of the cache, while the tokens of an undivided prompt attend
/// to each other: the same sums in another order.
#[test]
fn a_prompt_gives_the_same_result_if_it_is_prefilled_in_chunks() {
    let mut same = SameSamples::default();
    for family in FAMILIES {
        let decoder = decoder(family);
        let requests = requests(7, 2, &truncated());
        let whole = generate(&decoder, options(), &requests).unwrap();
        for (max_num_seqs, max_num_batched_tokens) in [(64, 1), (64, 3), (3, 4), (64, 10)] {
            let bounds = EngineOptions { max_num_seqs, max_num_batched_tokens, ..options() };
            let pieces = generate(&decoder, bounds, &requests).unwrap();
            same.compare(&whole, &pieces);
            if max_num_seqs == 64 {
                continue;
            }
            let alone: Vec<_> = requests
                .iter()
                .map(|request| {
                    let bounds = EngineOptions { max_num_batched_tokens, ..options() };
                    generate(&decoder, bounds, std::slice::from_ref(request)).unwrap().remove(0)
                })
                .collect();
            assert_eq!(pieces, alone, "{family}: pieces do not depend on what runs beside them");
        }
    }
    same.check();
}

#[test]
fn a_sample_survives_preemption() {
    let mut same = SameSamples::default();
    for family in FAMILIES {
        let decoder = decoder(family);
        let requests = requests(7, 2, &SamplingParams::default());
        let roomy = generate(&decoder, options(), &requests).unwrap();
        let sizes = &decoder.config;
        let token_bytes = 4 * sizes.num_layers * sizes.cached_numbers();
        let tight = EngineOptions { max_cache_bytes: Some(token_bytes * 48), ..options() };
        let mut engine = Engine::new(tight);
        engine.sync_weights(&decoder, 0).unwrap();
        let preempted = engine
            .generate(&decoder, &requests, &Letters, &mut |_| std::ops::ControlFlow::Continue(()))
            .unwrap();
        assert!(engine.stats().num_preemptions > 0, "the cache is tight enough to matter");
        same.compare(&roomy, &preempted);
    }
    same.check();
}

/// The penalty of transformers, on logits of a dense forward pass.
#[test]
fn a_penalised_greedy_rollout_is_the_dense_one() {
    let decoder = decoder("llama");
    let sampling = SamplingParams { repetition_penalty: 1.7, ..SamplingParams::greedy() };
    let requests = requests(4, 1, &sampling);
    let completions = generate(&decoder, options(), &requests).unwrap();
    for (request, samples) in requests.iter().zip(&completions) {
        let mut sequence = request.prompt.to_vec();
        for &token in &samples[0].tokens {
            assert_eq!(token, next_penalised(&decoder, &sequence, 1.7));
            sequence.push(token);
        }
    }
    assert_ne!(tokens(&completions), tokens(&generate(&decoder, options(), &plain_greedy()).unwrap()));
}

fn plain_greedy() -> Vec<Request> {
    requests(4, 1, &SamplingParams::greedy())
}

fn next_penalised(decoder: &Decoder, sequence: &[u32], penalty: f32) -> u32 {
    let input = rlt_decoder::PackedInput::new(&[sequence], tch::Device::Cpu);
    let hidden = tch::no_grad(|| decoder.hidden_states(&input, Adapter::On));
    let logits =
        tch::no_grad(|| decoder.logits(&hidden.narrow(0, sequence.len() as i64 - 1, 1), Adapter::On));
    let mut logits = Vec::<f32>::try_from(logits.view([-1])).unwrap();
    let mut seen = sequence.to_vec();
    seen.sort_unstable();
    seen.dedup();
    for token in seen {
        let logit = &mut logits[token as usize];
        *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
    }
    (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap() as u32
}

/// bf16 rounds each activation to 8 bits: log-probs of the two routes differ by what one rounding in a
/// residual stream of a few units makes, some hundredths.
#[test]
fn a_bf16_rollout_stays_close_to_the_bf16_actor() {
    let bf16 = LoadOptions { param_dtype: Kind::BFloat16, compute: Kind::BFloat16, ..LoadOptions::default() };
    let decoder = Decoder::load(&folder("qwen3"), &bf16).unwrap();
    let requests = requests(5, 2, &SamplingParams::default());
    let completions = generate(&decoder, options(), &requests).unwrap();
    let error = actor_error(&decoder, &requests, &completions);
    assert!(error <= 0.1, "{error:.1e}");
}
