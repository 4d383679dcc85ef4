//! Fixture models, requests and an engine around them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rlt_core::engine::DetokenizeError;
use rlt_core::sampling::{SamplingParams, derive_seed};
use rlt_core::types::{Completion, TokenId};
use rlt_trainer::model::{Adapter, Decoder, LoadOptions, PackedInput};
use rlt_trainer::rollout::{Detokenizer, RolloutEngine, RolloutError, RolloutOptions, RolloutRequest};
use tch::{Device, Kind, Tensor};

pub(crate) const FAMILIES: [&str; 8] = [
    "llama",
    "llama3-rope-bias",
    "llama-untied-sharded-bf16",
    "mistral",
    "qwen2",
    "qwen2-window",
    "qwen3",
    "gemma",
];

/// Token 0 is "a", token 25 is "z", token 26 is "a" again; every character is one token.
pub(crate) struct Letters;

impl Detokenizer for Letters {
    fn decode(&self, tokens: &[TokenId]) -> Result<String, DetokenizeError> {
        Ok(tokens.iter().map(|token| char::from(b'a' + (token % 26) as u8)).collect())
    }
}

pub(crate) fn folder(family: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models").join(family)
}

pub(crate) fn decoder(family: &str) -> Decoder {
    Decoder::load(&folder(family), &LoadOptions::default()).unwrap()
}

/// Small blocks, so that short sequences cross several of them.
pub(crate) fn options() -> RolloutOptions {
    RolloutOptions { block_size: 4, ..RolloutOptions::default() }
}

/// Requests of different prompt lengths, `num_samples` each, with seeds of their own.
pub(crate) fn requests(
    num_requests: u32,
    num_samples: u64,
    sampling: &SamplingParams,
) -> Vec<RolloutRequest> {
    let request = |idx: u32| {
        let prompt: Arc<[TokenId]> = (0..1 + (idx * 5) % 23).map(|t| 2 + (t * 7 + idx * 13) % 90).collect();
        RolloutRequest {
            prompt,
            seeds: (0..num_samples).map(|sample| derive_seed(&[u64::from(idx), sample])).collect(),
            sampling: sampling.clone(),
            max_new_tokens: 6 + idx as usize % 12,
        }
    };
    (0..num_requests).map(request).collect()
}

/// Sampling that uses everything at once.
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
    options: RolloutOptions,
    requests: &[RolloutRequest],
) -> Result<Vec<Vec<Completion>>, RolloutError> {
    let mut engine = RolloutEngine::new(options);
    engine.sync_weights(decoder, 0)?;
    engine.generate(decoder, requests, &Letters, &mut |_| {})
}

pub(crate) fn tokens(completions: &[Vec<Completion>]) -> Vec<Vec<TokenId>> {
    completions.iter().flatten().map(|completion| completion.tokens.clone()).collect()
}

/// Largest difference between the log-probs of the same tokens.
pub(crate) fn logprob_error(a: &[Vec<Completion>], b: &[Vec<Completion>]) -> f64 {
    let values = |completions: &[Vec<Completion>]| -> Vec<f32> {
        completions.iter().flatten().flat_map(|completion| completion.rollout_logprobs.clone()).collect()
    };
    let (a, b) = (values(a), values(b));
    assert_eq!(a.len(), b.len());
    a.iter().zip(&b).map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max)
}

/// Log-probs of the completion's tokens in one dense forward pass of the trainer over prompt and completion.
pub(crate) fn actor_logprobs(
    decoder: &Decoder,
    request: &RolloutRequest,
    completion: &Completion,
) -> Vec<f32> {
    let sequence: Vec<TokenId> = request.prompt.iter().chain(&completion.tokens).copied().collect();
    let input = PackedInput::new(&[&sequence], Device::Cpu);
    let logits_tv = tch::no_grad(|| decoder.logits(&decoder.hidden_states(&input, Adapter::On)));
    let len = completion.tokens.len() as i64;
    let rows_tv = logits_tv.narrow(0, request.prompt.len() as i64 - 1, len).to_kind(Kind::Float);
    let targets: Vec<i64> = completion.tokens.iter().map(|&token| i64::from(token)).collect();
    let logprobs_tv = (rows_tv / request.sampling.logprob_temperature()).log_softmax(-1, Kind::Float);
    let picked = logprobs_tv.gather(1, &Tensor::from_slice(&targets).unsqueeze(1), false).squeeze_dim(1);
    Vec::<f32>::try_from(&picked).unwrap()
}

/// Largest difference between what the engine reports and what the actor computes.
pub(crate) fn actor_error(
    decoder: &Decoder,
    requests: &[RolloutRequest],
    completions: &[Vec<Completion>],
) -> f64 {
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
