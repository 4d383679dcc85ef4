//! Ends of completions, and requests that are refused before they begin.

use std::cell::Cell;
use std::ops::ControlFlow;

use rlt_core::sampling::SamplingParams;
use rlt_core::types::{Completion, FinishReason};
use rlt_engine::{Engine, EngineError, EngineOptions, Request, RolloutProgress, SequenceId};

use super::fixture::*;

fn one(sampling: SamplingParams, bounds: EngineOptions) -> Result<Completion, EngineError> {
    let request = Request {
        images: Vec::new(),
        prompt: [5, 6, 7].into(),
        seeds: vec![9],
        sampling,
        max_new_tokens: 12,
    };
    let mut completions = generate(&decoder("llama"), bounds, &[request])?;
    Ok(completions.remove(0).remove(0))
}

fn unstopped() -> Completion {
    one(SamplingParams::default(), options()).unwrap()
}

#[test]
fn a_completion_ends_at_its_length_without_anything_else() {
    let completion = unstopped();
    assert_eq!(completion.tokens.len(), 12);
    assert_eq!(completion.finish_reason, FinishReason::Length);
    assert_eq!(completion.text.chars().count(), 12);
}

#[test]
fn a_stop_token_or_an_end_of_sequence_is_the_last_token() {
    let whole = unstopped();
    let stop = whole.tokens[4];
    let at = whole.tokens.iter().position(|&token| token == stop).unwrap();
    let by_stop = SamplingParams { stop_token_ids: vec![stop], ..SamplingParams::default() };
    let eos = EngineOptions { eos_token_ids: vec![stop], ..options() };
    for completion in [one(by_stop.clone(), options()), one(SamplingParams::default(), eos.clone())] {
        let completion = completion.unwrap();
        assert_eq!(completion.tokens, whole.tokens[..=at]);
        assert_eq!(completion.rollout_logprobs, whole.rollout_logprobs[..=at]);
        assert_eq!(completion.finish_reason, FinishReason::Stop);
    }
    let ignoring = SamplingParams { ignore_eos: true, ..SamplingParams::default() };
    assert_eq!(one(ignoring, eos).unwrap(), whole);
    let ignoring = SamplingParams { ignore_eos: true, ..by_stop };
    assert_eq!(one(ignoring, options()).unwrap().tokens.len(), at + 1, "a stop token is no end of sequence");
}

#[test]
fn a_stop_string_is_cut_from_the_text_and_kept_in_the_tokens() {
    let whole = unstopped();
    let stop = whole.text[5..8].to_owned();
    let at = whole.text.find(&stop).unwrap();
    let sampling = SamplingParams { stop: vec![stop, "0".into()], ..SamplingParams::default() };
    let completion = one(sampling, options()).unwrap();
    assert_eq!(completion.text, whole.text[..at]);
    assert_eq!(completion.tokens, whole.tokens[..at + 3]);
    assert_eq!(completion.finish_reason, FinishReason::Stop);
}

#[test]
fn the_models_context_ends_a_completion_and_is_its_finish_reason() {
    let bounds = EngineOptions { max_model_len: Some(8), ..options() };
    let completion = one(SamplingParams::default(), bounds).unwrap();
    assert_eq!(completion.tokens.len(), 5);
    assert_eq!(completion.finish_reason, FinishReason::Context);
    let as_long = EngineOptions { max_model_len: Some(15), ..options() };
    let completion = one(SamplingParams::default(), as_long).unwrap();
    assert_eq!((completion.tokens.len(), completion.finish_reason), (12, FinishReason::Length));
    let full = EngineOptions { max_model_len: Some(3), ..options() };
    let refused = one(SamplingParams::default(), full);
    assert!(matches!(
        refused,
        Err(EngineError::PromptTooLong { request_idx: 0, prompt_len: 3, max_model_len: 3 })
    ));
}

#[test]
fn impossible_requests_are_refused_by_number() {
    let sampling = SamplingParams { top_p: 0.0, ..SamplingParams::default() };
    assert!(matches!(one(sampling, options()), Err(EngineError::Sampling { request_idx: 0, .. })));
    let decoder = decoder("llama");
    let mut pair = requests(2, 1, &SamplingParams::default());
    pair[1].prompt = [128].into();
    let refused = generate(&decoder, options(), &pair);
    assert!(matches!(
        refused,
        Err(EngineError::UnknownToken { request_idx: 1, token: 128, vocab_size: 128 })
    ));
    pair[1].prompt = [].into();
    assert!(matches!(generate(&decoder, options(), &pair), Err(EngineError::Schedule(_))));
    let tight = EngineOptions { max_cache_bytes: Some(1), ..options() };
    assert!(matches!(one(SamplingParams::default(), tight), Err(EngineError::Schedule(_))));
}

#[test]
fn logits_that_are_not_finite_end_the_rollout_with_the_sample_named() {
    let decoder = decoder("llama");
    let (_, norm) =
        decoder.named_parameters().into_iter().find(|(name, _)| name == "model.norm.weight").unwrap();
    tch::no_grad(|| {
        let _ = norm.view([-1]).narrow(0, 0, 1).fill_(f64::NAN);
    });
    let refused = generate(&decoder, options(), &requests(2, 1, &SamplingParams::default()));
    let Err(EngineError::NonFiniteLogits { request_idx, sample_idx, position }) = refused else {
        panic!("expected non-finite logits, got {refused:?}")
    };
    assert_eq!((request_idx, sample_idx, position), (0, 0, 0));
}

#[test]
fn each_completion_is_handed_over_while_others_are_still_being_sampled() {
    let decoder = decoder("llama");
    let mut requests = requests(3, 2, &SamplingParams { ignore_eos: true, ..SamplingParams::default() });
    for (request, max_new_tokens) in requests.iter_mut().zip([2, 9, 5]) {
        request.max_new_tokens = max_new_tokens;
    }
    let expected = generate(&decoder, options(), &requests).unwrap();
    let mut engine = Engine::new(options());
    engine.sync_weights(&decoder, 0).unwrap();
    let num_tokens = Cell::new(0);
    let mut progress = |progress: RolloutProgress| {
        num_tokens.set(progress.num_tokens);
        ControlFlow::Continue(())
    };
    let mut handed = Vec::new();
    let mut on_finish = |id: SequenceId, completion: &Completion| {
        handed.push((id, completion.clone(), num_tokens.get()));
    };
    let completions =
        engine.generate_streaming(&decoder, &requests, &Letters, &mut progress, &mut on_finish).unwrap();
    assert_eq!(completions, expected, "observers change nothing");
    assert_eq!(handed.len(), 6, "each once");
    for (id, completion, _) in &handed {
        assert_eq!(*completion, completions[id.request_idx][id.sample_idx]);
    }
    let total: usize = completions.iter().flatten().map(|completion| completion.tokens.len()).sum();
    assert_eq!(num_tokens.get(), total);
    let first = handed.iter().find(|(id, ..)| id.request_idx == 0).unwrap();
    assert!(first.2 < total / 2, "the shortest were handed over after {} of {total} tokens", first.2);
}
