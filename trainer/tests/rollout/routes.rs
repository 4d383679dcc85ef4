//! Rollout and actor choose the same experts for a token, and are seen to choose others where they do.

use rlt_core::sampling::SamplingParams;
use rlt_decoder::{Adapter, Decoder, PackedInput, RouteCounter, RouteCounts, RoutesOfCompletion};
use rlt_engine::{Engine, EngineOptions};
use tch::{Device, Kind};

use super::fixture::*;

const MIXTURES: [&str; 6] = ["mixtral", "qwen2-moe", "qwen3-moe", "gpt-oss", "deepseek-v2", "deepseek-v3"];

/// Compares the actor's routes with those of an engine that computes in `rollout`, for each sampled token.
fn counted(decoder: &Decoder, rollout: Kind) -> RouteCounts {
    let requests = requests(8, 2, &SamplingParams::default());
    let mut engine = Engine::new(EngineOptions { compute: Some(rollout), ..options() });
    engine.sync_weights(decoder, 0).unwrap();
    let completions =
        engine.generate(decoder, &requests, &Letters, &mut |_| std::ops::ControlFlow::Continue(())).unwrap();
    let experts = decoder.config.experts.as_ref().unwrap();
    let num_layers = experts.layers.iter().filter(|has_experts| **has_experts).count();
    let mut counts = RouteCounts::of_none(num_layers, experts.num_experts);
    for ((request, samples), routes) in requests.iter().zip(&completions).zip(engine.take_routes()) {
        let (prompt_len, completion) = (request.prompt.len(), &samples[0].tokens);
        assert_eq!(routes.len(), completion.len() * num_layers);
        let sequence = [&request.prompt[..], completion].concat();
        let input = PackedInput::new(&[&sequence], Device::Cpu);
        let (mut context, routes) = (decoder.context(&input, Adapter::On), RoutesOfCompletion::from(routes));
        let token = |token: usize| (prompt_len - 1 + token, Some((routes.clone(), token)));
        context.routes = Some(RouteCounter::new((0..completion.len()).map(token).collect(), num_layers));
        let embedded = tch::no_grad(|| decoder.embed(&input.tokens, Adapter::On));
        let _ = tch::no_grad(|| {
            decoder.layers().iter().fold(embedded, |hidden, layer| layer.forward(&hidden, &context))
        });
        counts += context.routes.take().unwrap().counts();
    }
    counts
}

#[test]
fn rollout_and_actor_choose_the_same_experts_in_the_same_numbers_and_not_in_others() {
    let mut least: f64 = 1.0;
    for family in MIXTURES {
        let decoder = decoder(family);
        assert!(
            counted(&decoder, Kind::Float).agreement().unwrap().iter().all(|share| *share == 1.0),
            "{family}"
        );
        let narrow = counted(&decoder, Kind::BFloat16).agreement().unwrap();
        println!("{family}: of a rollout in bf16 {narrow:?}");
        assert!(narrow.iter().all(|share| *share > 0.5), "{family}: {narrow:?}");
        least = narrow.into_iter().fold(least, f64::min);
    }
    assert!(least < 1.0, "bf16 moves no choice of near equals");
}
