//! Mixtures of experts on a device: samples, log-probs and routes, with launches that do not depend on where
//! tokens go.

use std::ops::ControlFlow;

use rlt_core::sampling::SamplingParams;
use rlt_decoder::{
    Adapter, Decoder, LoadOptions, PackedInput, RouteCounter, RouteCounts, RoutesOfCompletion,
};
use rlt_engine::{Engine, EngineOptions, Request};
use tch::{Device, Kind, Tensor};

use super::fixture::*;
use super::ranks::{engine, on_ranks};
use super::{DEVICE, decoder_on, device_decoder, on_device, sampled};

/// Families, with the launches of their two layers. Qwen2-MoE's first layer is dense, and its second one has
/// a shared expert.
const MIXTURES: [(&str, u64); 3] = [("mixtral", 2 * 13), ("qwen2-moe", 9 + 17), ("qwen3-moe", 2 * 13)];

#[test]
fn mixtures_sample_the_same_tokens_on_a_device_and_on_the_cpu() {
    on_device("experts_on_device::mixtures_sample_the_same_tokens_on_a_device_and_on_the_cpu", || {
        let mut same = SameSamples::default();
        for (family, _) in MIXTURES {
            let (cpu, device) = (decoder(family), device_decoder(family));
            for sampling in [truncated(), SamplingParams::greedy()] {
                let stop_token_ids = (0..40).collect();
                let requests = requests(7, 2, &SamplingParams { stop_token_ids, ..sampling });
                let expected = generate(&cpu, options(), &requests).unwrap();
                let by_graphs = sampled(&device, options(), &requests).0;
                same.compare(&expected, &by_graphs);
                let eager = EngineOptions { uses_graphs: false, ..options() };
                assert_eq!(by_graphs, sampled(&device, eager, &requests).0, "{family}");
                let few = EngineOptions { max_num_seqs: 3, max_num_batched_tokens: 6, ..options() };
                same.compare(&expected, &sampled(&device, few, &requests).0);
            }
        }
        same.check();
    });
}

#[test]
fn two_devices_with_shards_of_each_expert_sample_as_one_does() {
    on_device("experts_on_device::two_devices_with_shards_of_each_expert_sample_as_one_does", || {
        let mut same = SameSamples::default();
        for (family, _) in MIXTURES {
            let requests = requests(5, 2, &truncated());
            let expected = generate(&decoder(family), options(), &requests).unwrap();
            let of_ranks = on_ranks(2, 60, |ranks| {
                let decoder = decoder_on(Device::Cuda(ranks.rank()), family);
                let mut engine = engine(&ranks, options());
                engine.sync_weights(&decoder, 0).unwrap();
                let mut go_on = |_| ControlFlow::Continue(());
                engine.generate(&decoder, &requests, &Letters, &mut go_on).unwrap()
            });
            assert_eq!(of_ranks[0], of_ranks[1], "{family}");
            same.compare(&expected, &of_ranks[0]);
        }
        same.check();
    });
}

#[test]
fn mixtures_in_bf16_stay_as_close_to_the_actor_on_a_device_as_on_the_cpu() {
    let test = "experts_on_device::mixtures_in_bf16_stay_as_close_to_the_actor_on_a_device_as_on_the_cpu";
    on_device(test, || {
        for (family, _) in MIXTURES {
            let load = |device| {
                let options = LoadOptions { device, compute: Kind::BFloat16, ..LoadOptions::default() };
                Decoder::load(&folder(family), &options).unwrap()
            };
            let requests = requests(5, 2, &truncated());
            // The actor is in bf16, because fp32 chooses other experts where several are nearly equal.
            let error = |decoder: &Decoder| {
                actor_error(&load(Device::Cpu), &requests, &sampled(decoder, options(), &requests).0)
            };
            let (of_cpu, of_device) = (error(&load(Device::Cpu)), error(&load(DEVICE)));
            assert!(of_device <= (3.0 * of_cpu).max(0.1), "{family}: {of_device:.1e}, the CPU {of_cpu:.1e}");
        }
    });
}

/// Compares the routes of the engine with those of the actor on the device, for each sampled token.
fn compared(decoder: &Decoder, requests: &[Request]) -> RouteCounts {
    let mut engine = Engine::new(options());
    engine.sync_weights(decoder, 0).unwrap();
    let mut go_on = |_| ControlFlow::Continue(());
    let completions = engine.generate(decoder, requests, &Letters, &mut go_on).unwrap();
    let experts = decoder.config.experts.as_ref().unwrap();
    let num_layers = decoder.config.num_expert_layers();
    let mut counts = RouteCounts::of_none(num_layers, experts.num_experts);
    for ((request, samples), routes) in requests.iter().zip(&completions).zip(engine.take_routes()) {
        let (prompt_len, completion) = (request.prompt.len(), &samples[0].tokens);
        assert_eq!(routes.len(), completion.len() * num_layers);
        let sequence = [&request.prompt[..], completion].concat();
        let input = PackedInput::new(&[&sequence], DEVICE);
        let (mut context, routes) = (decoder.context(&input, Adapter::On), RoutesOfCompletion::from(routes));
        let positions: Vec<i64> = (0..completion.len()).map(|at| (prompt_len - 1 + at) as i64).collect();
        let sampled: Vec<_> = (0..completion.len()).map(|token| Some((routes.clone(), token))).collect();
        let positions = Tensor::from_slice(&positions).to_device(DEVICE);
        context.routes = Some(RouteCounter::on_device(&positions, &sampled, num_layers));
        let _ = tch::no_grad(|| {
            let embedded = decoder.embed(&input.tokens, Adapter::On);
            decoder.layers().iter().fold(embedded, |hidden, layer| layer.forward(&hidden, &context))
        });
        counts += context.routes.take().unwrap().counts();
    }
    counts
}

#[test]
fn rollout_and_actor_choose_the_same_experts_on_a_device() {
    on_device("experts_on_device::rollout_and_actor_choose_the_same_experts_on_a_device", || {
        for (family, _) in MIXTURES {
            let counts = compared(&device_decoder(family), &requests(8, 2, &SamplingParams::default()));
            assert!(counts.agreement().unwrap().iter().all(|share| *share == 1.0), "{family}: {counts:?}");
            assert!(counts.busiest().iter().all(|share| *share > 0.0 && *share < 1.0), "{family}");
        }
    });
}

/// Returns the costs of two further steps: copies to and from the device, launches, waits.
fn two_steps(decoder: &Decoder, batch: u64, first_token: u32) -> [u64; 4] {
    let costs = |num_tokens: usize| {
        let request = Request {
            images: Vec::new(),
            prompt: (first_token..first_token + 11).collect(),
            seeds: (0..batch).collect(),
            sampling: SamplingParams { ignore_eos: true, ..truncated() },
            max_new_tokens: num_tokens,
        };
        let options = EngineOptions { uses_graphs: false, ..EngineOptions::default() };
        let before = rlt_devices::driver::counts().unwrap();
        sampled(decoder, options, &[request]);
        let after = rlt_devices::driver::counts().unwrap();
        [
            after.host_to_device - before.host_to_device,
            after.device_to_host - before.device_to_host,
            after.launches - before.launches,
            after.waits - before.waits,
        ]
    };
    let (short, long) = (costs(6), costs(8));
    [0, 1, 2, 3].map(|at| long[at] - short[at])
}

#[test]
fn a_step_of_a_mixture_costs_two_copies_and_equally_many_launches_for_any_routing() {
    let test =
        "experts_on_device::a_step_of_a_mixture_costs_two_copies_and_equally_many_launches_for_any_routing";
    on_device(test, || {
        for (family, of_layers) in MIXTURES {
            let device = device_decoder(family);
            for (batch, first_token) in [(1, 5), (1, 60), (16, 31)] {
                let costs = two_steps(&device, batch, first_token);
                assert_eq!(costs, [2, 2, 2 * (of_layers + 8), 2], "{family}, batch {batch}");
            }
        }
    });
}
