//! Rollouts of a model with an adapter: merged for generating, unmerged for training, the same numbers.

use rlt_core::sampling::SamplingParams;
use rlt_trainer::roles::rollout::{RolloutEngine, RolloutError};

use crate::fixture::*;

#[test]
fn rollout_logprobs_are_the_actors_with_an_adapter() {
    for family in ["llama", "qwen3", "gemma", "phi3", "mixtral", "qwen3-moe", "deepseek-v3"] {
        let mut decoder = decoder(family);
        let requests = requests(4, 2, &SamplingParams::default());
        let base = generate(&decoder, options(), &requests).unwrap();
        decoder.load_adapter(&folder(family).join("adapter")).unwrap();
        let adapted = generate(&decoder, options(), &requests).unwrap();
        assert_ne!(tokens(&base), tokens(&adapted), "{family}: the adapter takes part");
        let mut exact = decoder_f64(family);
        exact.load_adapter(&folder(family).join("adapter")).unwrap();
        assert_like_actor(family, [&decoder, &exact], &requests, &adapted);
    }
}

/// DoRA's magnitudes are folded in with the product.
#[test]
fn rollout_logprobs_are_the_actors_with_dora() {
    for (family, variant) in [("qwen2", "dora"), ("llama", "dora-rslora")] {
        let adapter = folder(family).join("adapters").join(variant);
        let (mut decoder, mut exact) = (decoder(family), decoder_f64(family));
        let requests = requests(4, 2, &SamplingParams::default());
        decoder.load_adapter(&adapter).unwrap();
        exact.load_adapter(&adapter).unwrap();
        let completions = generate(&decoder, options(), &requests).unwrap();
        assert_like_actor(family, [&decoder, &exact], &requests, &completions);
    }
}

#[test]
fn an_adapter_that_changed_is_found() {
    let mut decoder = decoder("llama");
    let requests = requests(1, 1, &SamplingParams::default());
    let mut engine = RolloutEngine::new(options());
    engine.sync_weights(&decoder, 0).unwrap();
    decoder.load_adapter(&folder("llama").join("adapter")).unwrap();
    let stale = engine.generate(&decoder, &requests, &Letters, &mut |_| std::ops::ControlFlow::Continue(()));
    assert!(matches!(stale, Err(RolloutError::StaleWeights { .. })), "{stale:?}");
}
