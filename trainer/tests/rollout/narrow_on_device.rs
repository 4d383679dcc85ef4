//! The rollout on a device in numbers of 16 bits: as close to the actor in fp32 as on the CPU, with the same
//! bits by graphs, and on ranks of a rollout TP group.

use std::ops::ControlFlow;

use rlt_core::sampling::SamplingParams;
use rlt_core::types::Completion;
use rlt_decoder::Decoder;
use rlt_engine::{EngineOptions, Request};
use tch::{Device, Kind};

use super::fixture::*;
use super::ranks::{engine, on_ranks};
use super::{DEVICE, decoder_on, on_device, sampled};

/// Kinds, and how far log-probs may be from fp32's: each activation is rounded to 8 and to 11 bits.
const NARROW: [(Kind, f64); 2] = [(Kind::BFloat16, 0.24), (Kind::Half, 0.03)];

fn options_in(kind: Kind) -> EngineOptions {
    EngineOptions { compute: Some(kind), ..options() }
}

fn samples(decoder: &Decoder, options: EngineOptions, requests: &[Request]) -> Vec<Vec<Completion>> {
    sampled(decoder, options, requests).0
}

#[test]
fn sixteen_bits_stay_as_close_to_the_actor_on_a_device_as_on_the_cpu() {
    on_device("narrow_on_device::sixteen_bits_stay_as_close_to_the_actor_on_a_device_as_on_the_cpu", || {
        for (kind, bound) in NARROW {
            for family in ["mistral", "qwen3"] {
                let (cpu, device) = (decoder(family), decoder_on(DEVICE, family));
                let requests = requests(5, 2, &truncated());
                // Prompts are prefilled at once, and in chunks that attend to the cache.
                for max_num_batched_tokens in [4096, 6] {
                    let options = EngineOptions { max_num_batched_tokens, ..options_in(kind) };
                    let (narrow, stats) = sampled(&device, options.clone(), &requests);
                    let wide = sampled(&device, EngineOptions { compute: None, ..options }, &requests).1;
                    assert_eq!(2 * stats.cache_bytes, wide.cache_bytes, "keys and values of 16 bits");
                    let error = actor_error(&cpu, &requests, &narrow);
                    let of_cpu = actor_error(&cpu, &requests, &samples(&cpu, options_in(kind), &requests));
                    let allowed = (3.0 * of_cpu).min(bound);
                    assert!(error <= allowed, "{family} in {kind:?}: {error:.1e} above {allowed:.1e}");
                }
            }
        }
    });
}

#[test]
fn graphs_and_ranks_give_the_same_in_sixteen_bits() {
    on_device("narrow_on_device::graphs_and_ranks_give_the_same_in_sixteen_bits", || {
        for (kind, bound) in NARROW {
            let requests = requests(5, 2, &truncated());
            let device = decoder_on(DEVICE, "qwen3");
            let eager = EngineOptions { uses_graphs: false, ..options_in(kind) };
            let by_graphs = samples(&device, options_in(kind), &requests);
            assert_eq!(by_graphs, samples(&device, eager, &requests), "{kind:?}");
            let of_ranks = on_ranks(2, 60, |ranks| {
                let decoder = decoder_on(Device::Cuda(ranks.rank()), "qwen3");
                let mut engine = engine(&ranks, options_in(kind));
                engine.sync_weights(&decoder, 0).unwrap();
                let mut go_on = |_| ControlFlow::Continue(());
                engine.generate(&decoder, &requests, &Letters, &mut go_on).unwrap()
            });
            assert_eq!(of_ranks[0], of_ranks[1], "{kind:?}");
            let error = actor_error(&decoder("qwen3"), &requests, &of_ranks[0]);
            assert!(error <= bound, "two ranks in {kind:?}: {error:.1e}");
        }
    });
}

/// Launches of a layer: norm, product, rotary embedding with the writes to the cache, gather of keys and
/// values, flash attention, product, norm, product, gate, product. A pass also launches the embedding and the
/// last norm.
#[test]
fn a_prefill_in_sixteen_bits_takes_eleven_launches_a_layer_one_copy_and_no_wait() {
    let test =
        "narrow_on_device::a_prefill_in_sixteen_bits_takes_eleven_launches_a_layer_one_copy_and_no_wait";
    on_device(test, || {
        let device = decoder_on(DEVICE, "llama");
        let request = Request {
            images: Vec::new(),
            prompt: (5..26).collect(),
            seeds: vec![1],
            sampling: SamplingParams { ignore_eos: true, ..SamplingParams::greedy() },
            max_new_tokens: 2,
        };
        let costs = |max_num_batched_tokens: usize| {
            let options = EngineOptions { max_num_batched_tokens, ..options_in(Kind::BFloat16) };
            let before = rlt_devices::driver::counts().unwrap();
            let tokens = tokens(&samples(&device, options, std::slice::from_ref(&request)));
            let after = rlt_devices::driver::counts().unwrap();
            let costs = [
                after.launches - before.launches,
                after.host_to_device - before.host_to_device,
                after.waits - before.waits,
            ];
            (costs, tokens)
        };
        // Twenty tokens are prefilled at once or in two chunks.
        let ((whole, expected), (pieces, tokens)) = (costs(20), costs(10));
        let layers = device.config.num_layers as u64;
        assert_eq!([0, 1, 2].map(|at| pieces[at] - whole[at]), [11 * layers + 2, 1, 0]);
        assert_eq!(tokens, expected);
    });
}
