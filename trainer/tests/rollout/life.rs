//! Sync, sleep and wake: stale weights are refused, and memory is freed.

use rlt_core::sampling::SamplingParams;
use rlt_decoder::{Decoder, LoadOptions};
use rlt_engine::{Engine, EngineError};

use super::fixture::*;

fn trainable(family: &str) -> Decoder {
    Decoder::load(&folder(family), &LoadOptions { trainable: true, ..LoadOptions::default() }).unwrap()
}

/// Adds `delta` to the last element of one parameter.
fn nudge(decoder: &Decoder, name: &str, delta: f64) {
    let (_, parameter) = decoder.named_parameters().into_iter().find(|(n, _)| n == name).unwrap();
    tch::no_grad(|| {
        let flat = parameter.view([-1]);
        let _ = flat.narrow(0, flat.size()[0] - 1, 1).f_add_scalar_(delta).unwrap();
    });
}

#[test]
fn any_parameter_that_changed_is_found_and_named() {
    for family in ["llama-untied-sharded-bf16", "llama3-rope-bias", "qwen3"] {
        let decoder = trainable(family);
        let requests = requests(1, 1, &SamplingParams::default());
        let mut engine = Engine::new(options());
        for (version, (name, _)) in decoder.named_parameters().iter().enumerate() {
            engine.sync_weights(&decoder, version as u64).unwrap();
            engine
                .generate(&decoder, &requests, &Letters, &mut |_| std::ops::ControlFlow::Continue(()))
                .unwrap();
            nudge(&decoder, name, 1e-3);
            match engine.generate(&decoder, &requests, &Letters, &mut |_| std::ops::ControlFlow::Continue(()))
            {
                Err(EngineError::StaleWeights { parameter, policy_version }) => {
                    assert_eq!((parameter.as_str(), policy_version), (name.as_str(), version as u64));
                }
                other => panic!("{family}: {name} went unnoticed: {other:?}"),
            }
        }
    }
}

#[test]
fn new_weights_replace_the_old_ones_completely() {
    let decoder = trainable("llama");
    let requests = requests(3, 2, &SamplingParams::default());
    let mut engine = Engine::new(options());
    engine.sync_weights(&decoder, 0).unwrap();
    engine.generate(&decoder, &requests, &Letters, &mut |_| std::ops::ControlFlow::Continue(())).unwrap();
    nudge(&decoder, "model.norm.weight", 0.5);
    nudge(&decoder, "model.layers.0.self_attn.k_proj.weight", 0.5);
    engine.sync_weights(&decoder, 1).unwrap();
    let updated =
        engine.generate(&decoder, &requests, &Letters, &mut |_| std::ops::ControlFlow::Continue(())).unwrap();
    assert!(actor_error(&decoder, &requests, &updated) <= 1e-5);
    assert_eq!(tokens(&updated), tokens(&generate(&decoder, options(), &requests).unwrap()));
}

#[test]
fn an_engine_without_weights_or_with_older_ones_refuses() {
    let decoder = decoder("llama");
    let requests = requests(1, 1, &SamplingParams::default());
    let mut engine = Engine::new(options());
    let run = |engine: &mut Engine| {
        engine.generate(&decoder, &requests, &Letters, &mut |_| std::ops::ControlFlow::Continue(()))
    };
    assert!(matches!(run(&mut engine), Err(EngineError::Asleep)));
    engine.sync_weights(&decoder, 3).unwrap();
    assert!(run(&mut engine).is_ok());
    let older = engine.sync_weights(&decoder, 2);
    assert!(matches!(older, Err(EngineError::OlderWeights { current: 3, offered: 2 })));
    engine.sleep();
    assert_eq!(engine.policy_version(), None);
    assert!(matches!(run(&mut engine), Err(EngineError::Asleep)));
}

#[test]
fn two_hundred_sleeps_leak_no_memory() {
    let decoder = decoder("llama");
    let requests = requests(4, 2, &SamplingParams::default());
    let mut engine = Engine::new(options());
    let mut first = None;
    let mut after_warm_up = 0;
    for cycle in 0..200 {
        engine.sync_weights(&decoder, cycle).unwrap();
        let completions = engine
            .generate(&decoder, &requests, &Letters, &mut |_| std::ops::ControlFlow::Continue(()))
            .unwrap();
        assert_eq!(&tokens(&completions), first.get_or_insert_with(|| tokens(&completions)));
        engine.sleep();
        if cycle == 40 {
            after_warm_up = rlt_torch::rss_bytes().unwrap();
        }
    }
    let grown = rlt_torch::rss_bytes().unwrap().saturating_sub(after_warm_up);
    // One leaked set of packed weights and cache is 0.2 MB, so 160 of them would be 30 MB. Other tests run at
    // the same time.
    assert!(grown < 16 << 20, "grew by {grown} bytes");
}

#[test]
fn progress_counts_every_token_and_sample() {
    let decoder = decoder("llama");
    let requests = requests(5, 2, &SamplingParams::default());
    let mut engine = Engine::new(rlt_engine::EngineOptions { max_num_seqs: 3, ..options() });
    engine.sync_weights(&decoder, 0).unwrap();
    let mut seen = Vec::new();
    let completions = engine
        .generate(&decoder, &requests, &Letters, &mut |progress| {
            seen.push(progress);
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
    let last = seen.last().unwrap();
    let num_tokens: usize = tokens(&completions).iter().map(Vec::len).sum();
    assert_eq!((last.num_tokens, last.num_finished), (num_tokens, 10));
    assert_eq!((last.num_running, last.num_waiting), (0, 0));
    assert!(seen.iter().all(|progress| progress.num_running <= 3));
    assert_eq!(engine.stats().num_tokens, num_tokens);
    assert_eq!(engine.stats().num_steps, seen.len());
}
