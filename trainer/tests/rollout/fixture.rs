//! Fixture models, requests and an engine around them.

use std::sync::Arc;

use rlt_core::engine::DetokenizeError;
use rlt_core::sampling::{SamplingParams, derive_seed};
use rlt_core::types::{Completion, TokenId};
use rlt_decoder::{Adapter, Decoder, LoadOptions, PackedInput};
use rlt_engine::{Detokenizer, Engine, EngineError, EngineOptions, Request};
use tch::{Device, Kind, Tensor};

pub(crate) use super::models::{FAMILIES, folder};

/// Token 0 is "a", token 25 is "z", token 26 is "a" again; every character is one token.
pub(crate) struct Letters;

impl Detokenizer for Letters {
    fn decode(&self, tokens: &[TokenId]) -> Result<String, DetokenizeError> {
        Ok(tokens.iter().map(|token| char::from(b'a' + (token % 26) as u8)).collect())
    }
}

pub(crate) fn decoder(family: &str) -> Decoder {
    Decoder::load(&folder(family), &LoadOptions::default()).unwrap()
}

/// Makes the model in f64, the reference of f32 rounding.
pub(crate) fn decoder_f64(family: &str) -> Decoder {
    let options = LoadOptions { param_dtype: Kind::Double, compute: Kind::Double, ..LoadOptions::default() };
    Decoder::load(&folder(family), &options).unwrap()
}

/// Small blocks, so that short sequences cross several of them.
pub(crate) fn options() -> EngineOptions {
    EngineOptions { block_size: 4, ..EngineOptions::default() }
}

/// Requests of different prompt lengths, `num_samples` each, with seeds of their own.
pub(crate) fn requests(num_requests: u32, num_samples: u64, sampling: &SamplingParams) -> Vec<Request> {
    let request = |idx: u32| {
        let prompt: Arc<[TokenId]> = (0..1 + (idx * 5) % 23).map(|t| 2 + (t * 7 + idx * 13) % 90).collect();
        Request {
            images: Vec::new(),
            prompt,
            seeds: (0..num_samples).map(|sample| derive_seed(&[u64::from(idx), sample])).collect(),
            sampling: sampling.clone(),
            max_new_tokens: 6 + idx as usize % 12,
        }
    };
    (0..num_requests).map(request).collect()
}

/// Sampling with temperature, top-k, top-p, min-p and a repetition penalty at once.
pub(crate) fn truncated() -> SamplingParams {
    SamplingParams {
        temperature: 0.8,
        top_k: Some(40),
        top_p: 0.9,
        min_p: 0.01,
        repetition_penalty: 1.2,
        ..SamplingParams::default()
    }
}

pub(crate) fn generate(
    decoder: &Decoder,
    options: EngineOptions,
    requests: &[Request],
) -> Result<Vec<Vec<Completion>>, EngineError> {
    let mut engine = Engine::new(options);
    engine.sync_weights(decoder, 0)?;
    engine.generate(decoder, requests, &Letters, &mut |_| std::ops::ControlFlow::Continue(()))
}

pub(crate) fn tokens(completions: &[Vec<Completion>]) -> Vec<Vec<TokenId>> {
    completions.iter().flatten().map(|completion| completion.tokens.clone()).collect()
}

/// Comparison of samples that two ways of computing them should give, counted over many samples.
///
/// A prefill recomputes values that a decode may have computed before, with additions in another order. So
/// log-probs agree only up to rounding, which the large random weights of these models amplify to about 1e-5,
/// and a draw changes if its random number is that close to a boundary. This happens to one of thousands of
/// samples, and depends on the machine.
#[derive(Default)]
pub(crate) struct SameSamples {
    num_samples: usize,
    num_different: usize,
}

impl SameSamples {
    pub(crate) fn compare(&mut self, a: &[Vec<Completion>], b: &[Vec<Completion>]) {
        let (a, b): (Vec<_>, Vec<_>) = (a.iter().flatten().collect(), b.iter().flatten().collect());
        assert_eq!(a.len(), b.len());
        for (a, b) in a.into_iter().zip(b) {
            self.num_samples += 1;
            if a.tokens == b.tokens {
                for (a, b) in a.rollout_logprobs.iter().zip(&b.rollout_logprobs) {
                    assert!((a - b).abs() <= 5e-5, "log-probs {a} and {b}");
                }
            } else {
                self.num_different += 1;
            }
        }
    }

    pub(crate) fn check(&self) {
        let Self { num_samples, num_different } = self;
        assert!(100 * num_different <= *num_samples, "{num_different} of {num_samples} differ");
    }
}

/// Asserts that the engine's log-probs are the actor's: within 1e-5, or within what f32 arithmetic itself is
/// away from f64 on a model that amplifies rounding more than that.
pub(crate) fn assert_like_actor(
    case: &str,
    [decoder, exact]: [&Decoder; 2],
    requests: &[Request],
    completions: &[Vec<Completion>],
) {
    let error = actor_error(decoder, requests, completions);
    let of_actor = |decoder: &Decoder, request: &Request, sample: &Completion| Completion {
        rollout_logprobs: actor_logprobs(decoder, request, sample),
        ..sample.clone()
    };
    let in_f32 = |(request, samples): (&Request, &Vec<Completion>)| -> Vec<Completion> {
        samples.iter().map(|sample| of_actor(decoder, request, sample)).collect()
    };
    let actors: Vec<_> = requests.iter().zip(completions).map(in_f32).collect();
    let rounding = actor_error(exact, requests, &actors);
    let allowed = (4.0 * rounding).max(1e-5);
    assert!(error <= allowed, "{case}: {error:.1e} above {allowed:.1e}");
}

/// Log-probs of the completion's tokens in one dense forward pass of the trainer over prompt and completion.
pub(crate) fn actor_logprobs(decoder: &Decoder, request: &Request, completion: &Completion) -> Vec<f32> {
    let sequence: Vec<TokenId> = request.prompt.iter().chain(&completion.tokens).copied().collect();
    let input = PackedInput::new(&[&sequence], Device::Cpu);
    let logits_tv = tch::no_grad(|| decoder.logits(&decoder.hidden_states(&input, Adapter::On), Adapter::On));
    let len = completion.tokens.len() as i64;
    let rows_tv = logits_tv.narrow(0, request.prompt.len() as i64 - 1, len).to_kind(Kind::Double);
    let targets: Vec<i64> = completion.tokens.iter().map(|&token| i64::from(token)).collect();
    let logprobs_tv = (rows_tv / request.sampling.logprob_temperature()).log_softmax(-1, Kind::Double);
    let picked = logprobs_tv.gather(1, &Tensor::from_slice(&targets).unsqueeze(1), false).squeeze_dim(1);
    Vec::<f32>::try_from(picked.to_kind(Kind::Float)).unwrap()
}

/// Largest difference between the engine's and the actor's log-probs.
pub(crate) fn actor_error(decoder: &Decoder, requests: &[Request], completions: &[Vec<Completion>]) -> f64 {
    let mut largest = 0.0f64;
    for (request, samples) in requests.iter().zip(completions) {
        assert_eq!(samples.len(), request.seeds.len());
        for completion in samples {
            assert_eq!(completion.tokens.len(), completion.rollout_logprobs.len());
            let actor = actor_logprobs(decoder, request, completion);
            for (rollout, actor) in completion.rollout_logprobs.iter().zip(actor) {
                largest = largest.max(f64::from((rollout - actor).abs()));
            }
        }
    }
    largest
}
