//! Equality of the logits of rollout and actor, to the bit, in bfloat16 on CPUs with tiles.

use rlt_core::batch::Batch;
use rlt_core::fixtures::{prompt, rollout};
use rlt_core::sampling::SamplingParams;
use rlt_core::types::{Completion, Reward, Rollout, RolloutGroup};
use rlt_decoder::{Adapter, Decoder, LoadOptions};
use rlt_engine::{EngineOptions, Request};
use rlt_models::ModelConfig;
use rlt_parallel::Ranks;
use rlt_trainer::roles::actor::{Actor, ActorOptions};
use rlt_trainer::roles::optim::{AdamW, AdamWOptions};
use tch::Kind;

use super::adapter::{adapted, unmerged};
use super::fixture::*;

/// Tolerance of the softmax of the same logits, which different functions compute in f32. One flip in the
/// last bit of a logit is a thousand times as much.
const SOFTMAX: f64 = 2e-6;

fn narrow() -> LoadOptions {
    LoadOptions { compute: Kind::BFloat16, trainable: true, ..LoadOptions::default() }
}

/// Widths that oneDNN would add up in parts that depend on the number of rows, and an odd vocabulary.
fn wide_model() -> Decoder {
    let config = ModelConfig::from_json(&serde_json::json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 331, "hidden_size": 192,
        "intermediate_size": 1600, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
        "head_dim": 32, "max_position_embeddings": 2048, "initializer_range": 0.2, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": true,
    }))
    .unwrap();
    Decoder::from_config(&config, 7, &narrow()).unwrap()
}

/// Prompts of 3 to 600 tokens with completions of uneven lengths.
fn mixed_requests() -> Vec<Request> {
    let lens = [3, 250, 600, 31, 64, 129];
    let mut requests = requests(lens.len() as u32, 3, &SamplingParams::default());
    for (idx, (request, len)) in requests.iter_mut().zip(lens).enumerate() {
        request.prompt = (0..len).map(|t| 2 + (t * 7 + idx as u32 * 13) % 300).collect();
        request.max_new_tokens = 9 + 13 * idx;
    }
    requests
}

/// The completions as the trainer packs them: a prompt once for its samples.
fn batch_of(requests: &[Request], completions: &[Vec<Completion>]) -> Batch {
    let group = |(request, samples): (&Request, &Vec<Completion>)| {
        let prompt = prompt(&request.prompt);
        let sample = |completion: &Completion| Rollout {
            completion: completion.clone(),
            ..rollout(&prompt, &[], Reward::from_score(0.0))
        };
        RolloutGroup { rollouts: samples.iter().map(sample).collect(), prompt }
    };
    let groups: Vec<_> = requests.iter().zip(completions).map(group).collect();
    Batch::from_groups(&groups, &[])
}

/// The largest difference of a log-prob between rollout and actor.
fn mismatch(decoder: Decoder, requests: &[Request], bounds: EngineOptions) -> f64 {
    let completions = generate(&decoder, bounds, requests).unwrap();
    let batch = batch_of(requests, &completions);
    let optimizer = AdamW::new(decoder.trainable_parameters(), AdamWOptions::default()).unwrap();
    let options = ActorOptions {
        temperature: 1.0,
        head_chunk_tokens: 50,
        activation_checkpointing: false,
        max_grad_norm: 1.0,
    };
    let scores =
        Actor::new(decoder, optimizer, options, Ranks::alone()).score(&batch, Adapter::On, 1500).unwrap();
    assert_eq!(scores.logprobs.len(), batch.rollout_logprobs.len());
    let pairs = scores.logprobs.iter().zip(&batch.rollout_logprobs);
    pairs.map(|(actor, rollout)| (actor - rollout).abs()).fold(0.0, f64::max)
}

fn has_no_order() -> bool {
    let has_none = !rlt_torch::has_one_order(Kind::BFloat16);
    if has_none {
        rlt_skipped::skip_also_under_ci("one order of sums in bfloat16 needs a CPU with AVX512_BF16");
    }
    has_none
}

/// Sequences run alone and in batches, with prompts prefilled at once and in chunks.
#[test]
fn a_token_has_the_same_logits_in_bfloat16_in_rollout_and_actor() {
    if has_no_order() {
        return;
    }
    for (max_num_seqs, max_num_batched_tokens) in [(1, 4096), (5, 100), (64, 4096)] {
        let bounds = EngineOptions { max_num_seqs, max_num_batched_tokens, ..options() };
        let off = mismatch(wide_model(), &mixed_requests(), bounds);
        assert!(off <= SOFTMAX, "{max_num_seqs} at once, prefills of {max_num_batched_tokens}: off by {off}");
    }
}

#[test]
fn every_family_has_the_same_logits_in_bfloat16_in_rollout_and_actor() {
    if has_no_order() {
        return;
    }
    for family in FAMILIES {
        let decoder = Decoder::load(&folder(family), &narrow()).unwrap();
        // Latent attention multiplies the same matrices in another order when it decodes.
        if decoder.config.latent.is_some() {
            continue;
        }
        let off = mismatch(decoder, &requests(6, 3, &SamplingParams::default()), options());
        assert!(off <= SOFTMAX, "{family}: off by {off}");
    }
}

#[test]
fn an_unmerged_adapter_gives_the_same_bfloat16_logits_in_rollout_and_actor() {
    if has_no_order() {
        return;
    }
    for family in ["llama", "qwen2", "phi3"] {
        let requests = requests(6, 3, &SamplingParams::default());
        let off = mismatch(adapted(family, Kind::BFloat16), &requests, unmerged());
        assert!(off <= SOFTMAX, "{family}: off by {off}");
    }
}
