//! Tensor-parallel rollouts with a device each: they equal one rank, without further waits of the host.

use std::error::Error;
use std::ops::ControlFlow;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};

use rlt_core::engine::DetokenizeError;
use rlt_core::sampling::SamplingParams;
use rlt_core::types::{Completion, TokenId};
use rlt_devices::Counts;
use rlt_engine::{Detokenizer, Engine, EngineError, EngineOptions, Request};
use rlt_parallel::Ranks;
use tch::Device;

use super::fixture::*;
use super::ranks::{engine, on_ranks};
use super::{Step, assert_step, decoder_on, is_inside, on_device, run_again, sampled};

const GO_ON: fn() -> ControlFlow<()> = || ControlFlow::Continue(());

/// A rank's engine with the weights of its device's model, for `body`.
fn of_rank<T>(
    ranks: &Ranks,
    (family, options): (&str, EngineOptions),
    body: impl FnOnce(&mut Engine, &rlt_decoder::Decoder) -> T,
) -> T {
    let decoder = decoder_on(Device::Cuda(ranks.rank()), family);
    let mut engine = engine(ranks, options);
    engine.sync_weights(&decoder, 0).unwrap();
    body(&mut engine, &decoder)
}

/// The completions of two tensor-parallel ranks, the same on either.
fn sharded(family: &str, options: &EngineOptions, requests: &[Request]) -> Vec<Vec<Completion>> {
    let of_ranks = on_ranks(2, 60, |ranks| {
        of_rank(&ranks, (family, options.clone()), |engine, decoder| {
            engine.generate(decoder, requests, &Letters, &mut |_| GO_ON()).unwrap()
        })
    });
    assert_eq!(of_ranks[0], of_ranks[1], "to the bit, log-probs included");
    of_ranks[0].clone()
}

#[test]
fn two_ranks_with_one_device_each_sample_as_one_rank_does() {
    on_device("tensor_parallel_on_devices::two_ranks_with_one_device_each_sample_as_one_rank_does", || {
        let mut same = SameSamples::default();
        let requests = requests(7, 2, &truncated());
        // Grouped heads, biases, norms of heads, a tied head.
        for family in ["qwen2", "qwen3", "gemma"] {
            let as_one = sharded(family, &options(), &requests);
            let device = decoder_on(Device::Cuda(0), family);
            same.compare(&sampled(&device, options(), &requests).0, &as_one);
            same.compare(&generate(&decoder(family), options(), &requests).unwrap(), &as_one);
        }
        let few = EngineOptions { max_num_seqs: 3, max_num_batched_tokens: 6, ..options() };
        let eager = EngineOptions { uses_graphs: false, ..few.clone() };
        let by_graphs = sharded("llama", &few, &requests);
        assert_eq!(by_graphs, sharded("llama", &eager, &requests), "graphs hold collectives as they are");
        same.compare(&generate(&decoder("llama"), options(), &requests).unwrap(), &by_graphs);
        same.check();
    });
}

const COUNTED: &str = "tensor_parallel_on_devices::a_tensor_parallel_decoding_step_waits_only_for_its_tokens";

#[test]
fn a_tensor_parallel_decoding_step_waits_only_for_its_tokens() {
    let variable = |name: &str| std::env::var(name).unwrap().parse::<usize>().unwrap();
    if is_inside() {
        let sampling = SamplingParams { ignore_eos: true, ..truncated() };
        let request = Request {
            images: Vec::new(),
            prompt: (5..16).collect(),
            seeds: (0..variable("RLT_TEST_BATCH") as u64).collect(),
            sampling,
            max_new_tokens: variable("RLT_TEST_TOKENS"),
        };
        let uses_graphs = variable("RLT_TEST_GRAPHS") == 1;
        let options = EngineOptions { max_num_seqs: 256, uses_graphs, ..EngineOptions::default() };
        sharded("llama", &options, &[request]);
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let counts = |batch: usize, num_tokens: usize, uses_graphs: bool| {
        let report = folder.path().join("counts.json");
        let numbers = [
            ("RLT_TEST_BATCH", batch),
            ("RLT_TEST_TOKENS", num_tokens),
            ("RLT_TEST_GRAPHS", usize::from(uses_graphs)),
        ];
        run_again(COUNTED, Some(&report), &numbers.map(|(name, number)| (name, number.to_string())));
        Counts::read(&report).unwrap()
    };
    const RANKS: u64 = 2;
    const LAYERS: u64 = 2;
    for batch in [1, 16] {
        // A layer launches two sums more than without sharding. A step also gathers the logits, concatenates
        // them, and exchanges the drawn tokens.
        for (uses_graphs, launches, graphs) in [(true, 0, 1), (false, (9 + 2) * LAYERS + 8 + 3, 0)] {
            let (short, long) = (counts(batch, 6, uses_graphs), counts(batch, 8, uses_graphs));
            let case = format!("batch {batch}, graphs: {uses_graphs}");
            // The host does not wait, because a thread polls for its tokens.
            assert_step([&short, &long], RANKS, Step { waits: 0, launches, graphs }, &case);
        }
    }
}

#[test]
fn bytes_of_captured_collectives_are_counted_at_every_launch() {
    on_device(
        "tensor_parallel_on_devices::bytes_of_captured_collectives_are_counted_at_every_launch",
        || {
            let requests = requests(3, 1, &SamplingParams::greedy());
            let sent = |uses_graphs: bool| {
                on_ranks(2, 60, |ranks| {
                    of_rank(
                        &ranks,
                        ("llama", EngineOptions { uses_graphs, ..options() }),
                        |engine, decoder| {
                            let before = ranks.traffic();
                            engine.generate(decoder, &requests, &Letters, &mut |_| GO_ON()).unwrap();
                            ranks.traffic().since(before).sent
                        },
                    )
                })
            };
            let (by_graphs, eager) = (sent(true), sent(false));
            assert!(eager[0] > 0 && by_graphs == eager, "{by_graphs:?} and {eager:?}");
        },
    );
}

#[test]
fn a_stop_request_at_one_rank_stops_its_whole_tensor_parallel_group() {
    on_device(
        "tensor_parallel_on_devices::a_stop_request_at_one_rank_stops_its_whole_tensor_parallel_group",
        || {
            // The request comes in the middle, and with the last token.
            let requests = requests(1, 1, &SamplingParams { ignore_eos: true, ..SamplingParams::greedy() });
            for asked_at in [3, requests[0].max_new_tokens] {
                let num_steps = on_ranks(2, 60, |ranks| {
                    of_rank(&ranks, ("llama", options()), |engine, decoder| {
                        let mut num_steps = 0;
                        let ended = engine.generate(decoder, &requests, &Letters, &mut |_| {
                            num_steps += 1;
                            let is_asked = ranks.rank() == 1 && num_steps == asked_at;
                            if is_asked { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                        });
                        assert!(matches!(ended, Err(EngineError::Interrupted)), "{ended:?}");
                        num_steps
                    })
                });
                // One step is in flight then, and the next step tells the other rank.
                assert_eq!(num_steps, [(asked_at + 2).min(requests[0].max_new_tokens), asked_at]);
            }
        },
    );
}

#[test]
fn ranks_that_draw_different_tokens_end_in_that_step() {
    on_device("tensor_parallel_on_devices::ranks_that_draw_different_tokens_end_in_that_step", || {
        let steps = on_ranks(2, 60, |ranks| {
            let mut requests = requests(1, 8, &SamplingParams::default());
            requests[0].seeds[ranks.rank()] += 1;
            of_rank(&ranks, ("llama", options()), |engine, decoder| {
                match engine.generate(decoder, &requests, &Letters, &mut |_| GO_ON()) {
                    Err(EngineError::Disagreement { step }) => step,
                    other => panic!("{other:?}"),
                }
            })
        });
        assert!(steps[0] == steps[1] && steps[0] < 6, "{steps:?}");
    });
}

/// Detokenizer that decodes a number of texts and then fails.
struct FailsAfter(AtomicUsize);

impl Detokenizer for FailsAfter {
    fn decode(&self, tokens: &[TokenId]) -> Result<String, DetokenizeError> {
        match self.0.fetch_sub(1, Ordering::Relaxed) {
            0 => Err("no words left".into()),
            _ => Letters.decode(tokens),
        }
    }
}

#[test]
fn a_rank_that_misses_a_step_is_named() {
    on_device("tensor_parallel_on_devices::a_rank_that_misses_a_step_is_named", || {
        let sampling =
            SamplingParams { ignore_eos: true, stop: vec!["?".into()], ..SamplingParams::greedy() };
        let requests = [Request { max_new_tokens: 40, ..requests(1, 1, &sampling).remove(0) }];
        let end = Barrier::new(2);
        let said = on_ranks(2, 5, |ranks| {
            let words = FailsAfter(AtomicUsize::new(if ranks.rank() == 1 { 8 } else { usize::MAX }));
            let failed = of_rank(&ranks, ("llama", options()), |engine, decoder| {
                engine.generate(decoder, &requests, &words, &mut |_| GO_ON()).unwrap_err()
            });
            end.wait();
            let cause = Error::source(&failed).and_then(Error::source);
            cause.map(ToString::to_string).unwrap_or_default()
        });
        let words = ["a rollout step", "of group rollout 0 of 2 shards on GPUs", "rank 1"];
        assert!(words.iter().all(|word| said[0].contains(word)), "{said:?}");
    });
}
