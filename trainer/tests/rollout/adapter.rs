//! Rollouts of a model with an adapter, which the engine holds merged or unmerged. The log-probs equal those
//! of the actor, whose adapter is unmerged.

use std::ops::ControlFlow;

use rlt_api::spec::LoraSpec;
use rlt_core::sampling::SamplingParams;
use rlt_core::types::Completion;
use rlt_decoder::{Decoder, LoadOptions};
use rlt_engine::{Engine, EngineError, EngineOptions, Request};
use rlt_plan::WeightSync;
use tch::Kind;

use super::fixture::*;

/// Families with separate and with fused projections, with biases, with experts, and with a gated shared
/// expert.
const UNMERGED: [&str; 7] = ["llama", "qwen2", "gemma", "phi3", "mixtral", "qwen3-moe", "qwen2-moe"];

/// Options of an engine with an unmerged adapter.
pub(crate) fn unmerged() -> EngineOptions {
    EngineOptions { merge_lora: false, ..options() }
}

/// Adapts every linear layer, some of them at another rank.
fn spec() -> LoraSpec {
    let ranks = [("o_proj".to_owned(), 3), ("v_proj".to_owned(), 33)];
    LoraSpec { rank: 4, alpha: 8.0, rank_pattern: ranks.into_iter().collect(), ..LoraSpec::default() }
}

/// Loads a fixture with an adapter of [`spec`] that changes the model's results from the start.
pub(crate) fn adapted(family: &str, kind: Kind) -> Decoder {
    let options = LoadOptions { param_dtype: kind, compute: kind, ..LoadOptions::default() };
    let mut decoder = Decoder::load(&folder(family), &options).unwrap();
    let has_qkv = decoder.layers()[0].projections().len() < 7 && family == "phi3";
    let mut spec = spec();
    if has_qkv {
        spec.rank_pattern.remove("v_proj");
    }
    decoder.attach_lora_spec(&spec, 5).unwrap();
    change(&decoder, 0.05);
    decoder
}

/// Replaces the values of B, as an update would.
fn change(decoder: &Decoder, size: f64) {
    for (name, matrix) in decoder.trainable_parameters() {
        if name.contains("lora_B") {
            let numbers: Vec<f32> = (0..matrix.numel()).map(|idx| ((idx * 7) % 11) as f32 - 5.0).collect();
            let numbers = tch::Tensor::from_slice(&numbers).view_as(&matrix) * size;
            tch::no_grad(|| matrix.shallow_clone().copy_(&numbers));
        }
    }
}

fn sample(engine: &mut Engine, decoder: &Decoder, requests: &[Request]) -> Vec<Vec<Completion>> {
    engine.generate(decoder, requests, &Letters, &mut |_| ControlFlow::Continue(())).unwrap()
}

#[test]
fn rollout_logprobs_equal_the_actors_with_an_unmerged_adapter() {
    for family in UNMERGED {
        let (decoder, exact) = (adapted(family, Kind::Float), adapted(family, Kind::Double));
        let requests = requests(4, 2, &SamplingParams::default());
        let completions = generate(&decoder, unmerged(), &requests).unwrap();
        assert_like_actor(family, [&decoder, &exact], &requests, &completions);
        let base = generate(&self::decoder(family), options(), &requests).unwrap();
        assert_ne!(tokens(&base), tokens(&completions), "{family}: the adapter takes part");
    }
}

/// Equality to the bit, as for a merged adapter.
#[test]
fn a_sample_with_an_unmerged_adapter_does_not_depend_on_its_batch() {
    for family in UNMERGED {
        let decoder = adapted(family, Kind::Float);
        let requests = requests(7, 2, &truncated());
        let together = generate(&decoder, unmerged(), &requests).unwrap();
        for (max_num_seqs, max_num_batched_tokens) in [(1, 4096), (3, 20), (5, 4096)] {
            let bounds = EngineOptions { max_num_seqs, max_num_batched_tokens, ..unmerged() };
            assert_eq!(together, generate(&decoder, bounds, &requests).unwrap(), "{family}");
        }
    }
}

#[test]
fn a_sync_transfers_only_the_adapter_and_as_many_bytes_as_the_plan_says() {
    for family in UNMERGED {
        let decoder = adapted(family, Kind::Float);
        let requests = requests(3, 2, &SamplingParams::default());
        let mut engine = Engine::new(unmerged());
        engine.sync_weights(&decoder, 0).unwrap();
        let whole = engine.synced_bytes();
        let before = sample(&mut engine, &decoder, &requests);
        engine.sleep();
        assert!(matches!(
            engine.generate(&decoder, &requests, &Letters, &mut |_| ControlFlow::Continue(())),
            Err(EngineError::Asleep)
        ));
        change(&decoder, -0.05);
        engine.sync_weights(&decoder, 1).unwrap();
        let mut spec = spec();
        if family == "phi3" {
            spec.rank_pattern.remove("v_proj");
        }
        let planned = WeightSync::of_adapter(&spec, &decoder.config, 1);
        assert_eq!(engine.synced_bytes() as u64, planned.bytes, "{family}");
        assert_ne!(engine.synced_bytes(), whole, "{family}");
        let after = sample(&mut engine, &decoder, &requests);
        assert_eq!(after, generate(&decoder, unmerged(), &requests).unwrap(), "{family}: as of a new engine");
        assert_ne!(tokens(&after), tokens(&before), "{family}: the adapter takes part");
        // Without a sync, changed weights are refused. The base has changed too, so the next sync packs it
        // again.
        let frozen = decoder.named_parameters().into_iter().find(|(name, _)| name.ends_with("o_proj.weight"));
        let _ = tch::no_grad(|| frozen.unwrap().1.g_mul_scalar_(-1.0));
        let stale = engine.generate(&decoder, &requests, &Letters, &mut |_| ControlFlow::Continue(()));
        assert!(matches!(stale, Err(EngineError::StaleWeights { .. })), "{family}");
        engine.sync_weights(&decoder, 2).unwrap();
        assert_eq!(engine.synced_bytes(), whole, "{family}");
        let turned = sample(&mut engine, &decoder, &requests);
        assert_eq!(turned, generate(&decoder, unmerged(), &requests).unwrap(), "{family}");
        assert_ne!(tokens(&turned), tokens(&after), "{family}");
    }
}

/// Merging in bfloat16 rounds the adapter together with the weight, while the actor does not round it.
#[test]
fn in_bfloat16_a_rollout_with_an_unmerged_adapter_is_closer_to_its_actor() {
    let requests = requests(6, 3, &SamplingParams::default());
    for family in ["llama", "qwen2", "phi3"] {
        let decoder = adapted(family, Kind::BFloat16);
        let apart = |options: EngineOptions| {
            let samples = generate(&decoder, options, &requests).unwrap();
            mean_difference(&decoder, &requests, &samples)
        };
        let (beside, folded) = (apart(unmerged()), apart(options()));
        assert!(beside < 0.5 * folded, "{family}: {beside:.1e} apart, folded in {folded:.1e}");
    }
}

/// Computes the mean difference between the log-probs of the engine and of the actor.
fn mean_difference(decoder: &Decoder, requests: &[Request], samples: &[Vec<Completion>]) -> f64 {
    let differences = requests.iter().zip(samples).flat_map(|(request, samples)| {
        samples.iter().flat_map(|sample| {
            let actor = actor_logprobs(decoder, request, sample);
            let pairs = actor.into_iter().zip(sample.rollout_logprobs.clone());
            pairs.map(|(a, b)| f64::from((a - b).abs())).collect::<Vec<_>>()
        })
    });
    let differences: Vec<f64> = differences.collect();
    differences.iter().sum::<f64>() / f64::from(differences.len() as u32)
}

#[test]
fn adapters_that_cannot_stay_unmerged_are_refused_by_the_field() {
    let refusal = |family: &str, spec: &LoraSpec| {
        let mut decoder = decoder(family);
        decoder.attach_lora_spec(spec, 5).unwrap();
        let error = Engine::new(unmerged()).sync_weights(&decoder, 0).unwrap_err();
        let EngineError::Tensor { source, .. } = error else { panic!("{error:?}") };
        source.to_string()
    };
    let dora = LoraSpec { dora: true, ..LoraSpec::default() };
    let experts = LoraSpec { target_parameters: vec!["mlp.experts.down_proj".into()], ..LoraSpec::default() };
    for (family, spec, part) in [
        ("llama", dora, "DoRA"),
        ("qwen3-moe", experts, "adapters of experts"),
        ("deepseek-v3", LoraSpec::default(), "latent attention"),
    ] {
        let message = refusal(family, &spec);
        assert!(message.contains("spec.model.lora.merge: true") && message.contains(part), "{message}");
    }
}

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

/// DoRA's magnitudes are merged together with the product.
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
    let mut engine = Engine::new(options());
    engine.sync_weights(&decoder, 0).unwrap();
    decoder.load_adapter(&folder("llama").join("adapter")).unwrap();
    let stale = engine.generate(&decoder, &requests, &Letters, &mut |_| std::ops::ControlFlow::Continue(()));
    assert!(matches!(stale, Err(EngineError::StaleWeights { .. })), "{stale:?}");
}

/// Embedding, head and norms are trained in full together with the adapter. The engine uses the trained
/// modules, and a model without them samples other tokens.
#[test]
fn rollouts_sample_with_the_modules_that_are_saved_with_an_adapter() {
    for (family, names) in
        [("mistral", &["lm_head", "embed_tokens", "norm"][..]), ("qwen3", &["embed_tokens"])]
    {
        let saved = |kind| {
            let options = LoadOptions { param_dtype: kind, compute: kind, ..LoadOptions::default() };
            let mut decoder = Decoder::load(&folder(family), &options).unwrap();
            let modules_to_save = names.iter().map(|name| (*name).to_owned()).collect();
            decoder.attach_lora_spec(&LoraSpec { modules_to_save, ..LoraSpec::default() }, 5).unwrap();
            turn(&decoder);
            decoder
        };
        let (decoder, exact) = (saved(Kind::Float), saved(Kind::Double));
        let requests = requests(4, 2, &SamplingParams::default());
        let mut engine = Engine::new(options());
        engine.sync_weights(&decoder, 0).unwrap();
        let before = sample(&mut engine, &decoder, &requests);
        assert_like_actor(family, [&decoder, &exact], &requests, &before);
        let base = generate(&self::decoder(family), options(), &requests).unwrap();
        assert_ne!(tokens(&base), tokens(&before), "{family}: saved modules take part");
        engine.sleep();
        turn(&decoder);
        engine.sync_weights(&decoder, 1).unwrap();
        let after = sample(&mut engine, &decoder, &requests);
        assert_eq!(after, generate(&decoder, options(), &requests).unwrap(), "{family}");
        assert_ne!(tokens(&after), tokens(&before), "{family}: the sync brings them");
        let refused = generate(&decoder, unmerged(), &requests).map(drop);
        let refused = format!("{:?}", refused.unwrap_err());
        assert!(refused.contains("modulesToSave"), "{refused}");
    }
}

/// Changes the values of modules that are trained in full, as an update would.
fn turn(decoder: &Decoder) {
    for (name, module) in decoder.trainable_parameters() {
        if !name.contains("lora_") {
            let shifted = module.detach().roll([1], [0]) * 1.1;
            tch::no_grad(|| module.shallow_clone().copy_(&shifted));
        }
    }
}
