//! The rollout on a device of CPU memory: it samples what the CPU samples, a step has the expected copies and
//! launches, and memory is freed. Each test runs itself again in a process with such a device.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "rollout/adapters_on_device.rs"]
mod adapters_on_device;
#[path = "rollout/commands_on_device.rs"]
mod commands_on_device;
#[path = "rollout/experts_on_device.rs"]
mod experts_on_device;
#[path = "rollout/fixture.rs"]
#[allow(dead_code, unused_imports, reason = "shared with the tests on the CPU, which need more of it")]
mod fixture;
#[path = "rollout/images_on_device.rs"]
mod images_on_device;
#[path = "fixtures/models.rs"]
mod models;
#[path = "rollout/narrow_on_device.rs"]
mod narrow_on_device;
#[path = "rollout/odd_models_on_device.rs"]
mod odd_models_on_device;
#[path = "rollout/ranks.rs"]
mod ranks;
#[path = "rollout/script.rs"]
#[allow(dead_code, reason = "shared with the tests on the CPU, which need more of it")]
mod script;
#[path = "rollout/tensor_parallel_on_devices.rs"]
mod tensor_parallel_on_devices;
#[path = "vision/fixture.rs"]
#[allow(dead_code, clippy::panic, reason = "shared with the tests on the CPU, which need more of it")]
mod vision;

use std::path::Path;
use std::process::Command;

use rlt_models::ModelConfig;

use fixture::*;
use rlt_core::sampling::SamplingParams;
use rlt_core::types::Completion;
use rlt_decoder::{Decoder, LoadOptions};
use rlt_devices::{Counts, StandIn};
use rlt_engine::{Engine, EngineOptions, Request, RolloutProgress, RolloutStats};
use serde_json::json;
use tch::Device;

const INSIDE: &str = "RLT_TEST_INSIDE";
const DEVICE: Device = Device::Cuda(0);

/// Runs the test `name` in a process with two devices, which writes its counts to `report`.
#[track_caller]
fn run_again(name: &str, report: Option<&Path>, variables: &[(&str, String)]) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture"]).env(INSIDE, "1");
    command.envs(StandIn::build().unwrap().with_devices(2)).envs(variables.iter().cloned());
    if let Some(report) = report {
        command.env("RLT_STAND_IN_REPORT", report);
    }
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
}

/// Whether this process has the device.
fn is_inside() -> bool {
    // Before CUDA is loaded, so that the counts of devices are still written at the end.
    rlt_torch::skip_destructors_at_exit();
    let inside = std::env::var_os(INSIDE).is_some();
    if inside {
        assert_eq!(rlt_torch::missing_cuda().unwrap(), None);
        rlt_torch::set_num_threads(1);
    }
    inside
}

/// Runs `body` in a process with a device.
#[track_caller]
fn on_device(name: &str, body: impl FnOnce()) {
    if is_inside() { body() } else { run_again(name, None, &[]) }
}

fn device_decoder(family: &str) -> Decoder {
    decoder_on(DEVICE, family)
}

fn decoder_on(device: Device, family: &str) -> Decoder {
    Decoder::load(&folder(family), &LoadOptions { device, ..LoadOptions::default() }).unwrap()
}

/// Returns the completions of a model, and the statistics of sampling them.
fn sampled(
    decoder: &Decoder,
    options: EngineOptions,
    requests: &[Request],
) -> (Vec<Vec<Completion>>, RolloutStats) {
    let mut engine = Engine::new(options);
    engine.sync_weights(decoder, 0).unwrap();
    let mut go_on = |_| std::ops::ControlFlow::Continue(());
    (engine.generate(decoder, requests, &Letters, &mut go_on).unwrap(), engine.stats())
}

/// Families with different kernels: grouped heads, biases, windows, norms of heads, Gemma's offsets, untied
/// heads; norms after blocks, norms over all heads, scales, and rotary embeddings of a part of a head, of
/// interleaved pairs, or none.
const ON_DEVICE: [&str; 16] = [
    "llama",
    "llama-untied-sharded-bf16",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma3",
    "olmo3",
    "phi4-longrope",
    "granite",
    "smollm3",
    "glm",
    "glm4",
    "exaone4",
    "ernie4-5",
    "seed-oss",
];

#[test]
fn a_device_samples_as_the_cpu_does() {
    on_device("a_device_samples_as_the_cpu_does", || {
        let mut same = SameSamples::default();
        for family in ON_DEVICE {
            let (cpu, device) = (decoder(family), device_decoder(family));
            for sampling in [SamplingParams::default(), truncated(), SamplingParams::greedy()] {
                // A third of all tokens end a sample, one step after the next one was launched.
                let stop_token_ids = (0..40).collect();
                let requests = requests(7, 2, &SamplingParams { stop_token_ids, ..sampling });
                let expected = generate(&cpu, options(), &requests).unwrap();
                same.compare(&expected, &sampled(&device, options(), &requests).0);
                let few = EngineOptions { max_num_seqs: 3, max_num_batched_tokens: 6, ..options() };
                same.compare(&expected, &sampled(&device, few, &requests).0);
            }
        }
        same.check();
    });
}

#[test]
fn graphs_give_the_bits_of_launches_one_by_one() {
    on_device("graphs_give_the_bits_of_launches_one_by_one", || {
        for family in ["llama", "qwen3"] {
            let device = device_decoder(family);
            let requests = requests(7, 2, &truncated());
            let eager = EngineOptions { uses_graphs: false, ..options() };
            let by_graphs = sampled(&device, options(), &requests).0;
            assert_eq!(by_graphs, sampled(&device, eager, &requests).0, "{family}");
        }
    });
}

/// A model whose contexts may have 1024 tokens, which paged attention splits over several blocks.
fn long_decoder(device: Device) -> Decoder {
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32,
        "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 1,
        "vocab_size": 96, "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "rope_theta": 10_000.0,
        "hidden_act": "silu", "tie_word_embeddings": true, "initializer_range": 0.1, "bos_token_id": null,
        "eos_token_id": null, "pad_token_id": null
    });
    let config = ModelConfig::from_json(&config).unwrap();
    Decoder::from_config(&config, 3, &LoadOptions { device, ..LoadOptions::default() }).unwrap()
}

/// Every prompt is longer than a prefill and so begins in a step of its own. Four samples end at about the
/// same time, so that the batch falls from four rows to one, and grows again row by row. The launches of all
/// numbers of rows share the workspace of paged attention.
#[test]
fn long_contexts_of_a_batch_that_shrinks_and_grows_are_sampled_as_on_the_cpu() {
    on_device("long_contexts_of_a_batch_that_shrinks_and_grows_are_sampled_as_on_the_cpu", || {
        let (cpu, device) = (long_decoder(Device::Cpu), long_decoder(DEVICE));
        let request = |idx: u32| Request {
            images: Vec::new(),
            prompt: (0..300 + idx * 97 % 400).map(|at| 2 + (at * 7 + idx * 13) % 90).collect(),
            seeds: vec![u64::from(idx)],
            sampling: SamplingParams::default(),
            max_new_tokens: 8 - idx as usize % 4,
        };
        let requests: Vec<Request> = (0..12).map(request).collect();
        let options =
            EngineOptions { max_num_seqs: 4, max_num_batched_tokens: 128, ..EngineOptions::default() };
        let mut same = SameSamples::default();
        let expected = generate(&cpu, options.clone(), &requests).unwrap();
        for uses_graphs in [true, false] {
            let mut engine = Engine::new(EngineOptions { uses_graphs, ..options.clone() });
            engine.sync_weights(&device, 0).unwrap();
            let mut rows = Vec::new();
            let mut go_on = |progress: RolloutProgress| {
                rows.push(progress.num_running);
                std::ops::ControlFlow::Continue(())
            };
            same.compare(&expected, &engine.generate(&device, &requests, &Letters, &mut go_on).unwrap());
            rows.dedup();
            let grows_again = |at: usize| rows[at - 1] > rows[at] && rows[at + 1..].contains(&4);
            assert!((1..rows.len()).any(grows_again), "the batch does not shrink and grow: {rows:?}");
        }
        same.check();
    });
}

#[test]
fn no_step_is_a_graph_where_the_environment_forbids_graphs() {
    if !is_inside() {
        let variable = ("RLT_CUDA_GRAPHS", "0".to_owned());
        return run_again("no_step_is_a_graph_where_the_environment_forbids_graphs", None, &[variable]);
    }
    let device = device_decoder("llama");
    let before = rlt_devices::driver::counts().unwrap();
    let (completions, _) = sampled(&device, options(), &requests(3, 1, &SamplingParams::greedy()));
    let after = rlt_devices::driver::counts().unwrap();
    assert_eq!(completions.len(), 3);
    assert_eq!(after.graph_launches, before.graph_launches);
    assert!(after.launches > before.launches, "steps are launched one by one");
}

#[test]
fn decoding_continues_in_eager_mode_after_a_failed_capture() {
    if !is_inside() {
        for (variable, value) in [
            // CUDA_ERROR_STREAM_CAPTURE_INVALIDATED.
            ("RLT_STAND_IN_CAPTURE_FAILURE", "901"),
            // Operators of a pass: products, sums of blocks without a norm before them, norms of all heads.
            ("RLT_STAND_IN_CAPTURE_REFUSES", "aten::mm"),
            ("RLT_STAND_IN_CAPTURE_REFUSES", "aten::add"),
            ("RLT_STAND_IN_CAPTURE_REFUSES", "aten::copy_"),
        ] {
            let name = "decoding_continues_in_eager_mode_after_a_failed_capture";
            run_again(name, None, &[(variable, value.to_owned())]);
        }
        return;
    }
    let device = device_decoder("olmo3");
    let requests = requests(7, 2, &truncated());
    let eager = EngineOptions { uses_graphs: false, ..options() };
    let expected = sampled(&device, eager, &requests).0;
    let mut engine = Engine::new(options());
    engine.sync_weights(&device, 0).unwrap();
    for num_failed_captures in [1, 0] {
        let mut go_on = |_| std::ops::ControlFlow::Continue(());
        assert_eq!(engine.generate(&device, &requests, &Letters, &mut go_on).unwrap(), expected);
        assert_eq!(engine.stats().num_failed_captures, num_failed_captures, "an engine tries once");
    }
    assert_eq!(engine.num_failed_captures(), 1);
}

#[test]
fn a_sample_survives_preemption_on_a_device() {
    on_device("a_sample_survives_preemption_on_a_device", || {
        let mut same = SameSamples::default();
        for family in ["llama", "qwen3"] {
            let device = device_decoder(family);
            let requests = requests(7, 2, &truncated());
            let roomy = sampled(&device, options(), &requests).0;
            let sizes = &device.config;
            let token_bytes = 2 * 4 * sizes.num_layers * sizes.num_kv_heads * sizes.head_dim;
            let tight = EngineOptions { max_cache_bytes: Some(token_bytes * 48), ..options() };
            let (preempted, stats) = sampled(&device, tight, &requests);
            assert!(stats.num_preemptions > 0, "the cache is tight enough to matter");
            same.compare(&roomy, &preempted);
        }
        same.check();
    });
}

#[test]
fn two_hundred_sleeps_leak_no_memory_on_a_device() {
    on_device("two_hundred_sleeps_leak_no_memory_on_a_device", || {
        let device = device_decoder("llama");
        let mut engine = Engine::new(options());
        let free = || rlt_torch::device_memory(DEVICE).unwrap().unwrap().free_bytes;
        let mut after_warm_up = 0;
        for cycle in 0..200 {
            // Each cycle has a cache of another size, so that the blocks freed by one cycle do not fit the
            // next.
            let requests = requests(1 + cycle % 4, 1, &SamplingParams::greedy());
            let short: Vec<_> =
                requests.into_iter().map(|request| Request { max_new_tokens: 3, ..request }).collect();
            engine.sync_weights(&device, u64::from(cycle)).unwrap();
            let mut go_on = |_| std::ops::ControlFlow::Continue(());
            engine.generate(&device, &short, &Letters, &mut go_on).unwrap();
            engine.sleep();
            // The first cycles reserve a block of each size.
            if cycle == 3 {
                after_warm_up = free();
            }
            assert!(free() >= after_warm_up, "{} bytes are not returned", after_warm_up - free());
        }
    });
}

/// The allocator keeps freed blocks reserved until its cache is emptied, and the update that follows a
/// rollout could not use those of another stream.
#[test]
fn a_rollout_that_sleeps_reserves_no_memory_on_a_device() {
    on_device("a_rollout_that_sleeps_reserves_no_memory_on_a_device", || {
        let device = device_decoder("llama");
        let requests = requests(4, 1, &SamplingParams::greedy());
        let free = || rlt_torch::device_memory(DEVICE).unwrap().unwrap().free_bytes;
        let call = |engine: &mut Engine| {
            let mut go_on = |_| std::ops::ControlFlow::Continue(());
            engine.generate(&device, &requests, &Letters, &mut go_on).unwrap();
        };
        let mut engine = Engine::new(options());
        rlt_torch::release_free_memory();
        let before_sync = free();
        engine.sync_weights(&device, 0).unwrap();
        rlt_torch::release_free_memory();
        let after_sync = free();
        assert!(after_sync < before_sync, "packed weights take memory");
        call(&mut engine);
        assert!(free() < after_sync, "a call reserves memory");
        engine.free_cache();
        let after_free_cache = free();
        assert!(after_free_cache >= after_sync, "{} bytes stay reserved", after_sync - after_free_cache);
        call(&mut engine);
        engine.sleep();
        let after_sleep = free();
        assert!(after_sleep >= before_sync, "{} bytes stay reserved", before_sync - after_sleep);
    });
}

/// libtorch's allocator reuses a freed block only on the stream on which it was allocated, so a stream per
/// call would reserve the buffers of a call again for each of libtorch's 32 streams.
#[test]
fn forty_calls_reserve_little_more_memory_than_the_first_three_on_a_device() {
    on_device("forty_calls_reserve_little_more_memory_than_the_first_three_on_a_device", || {
        let device = device_decoder("llama");
        let mut engine = Engine::new(options());
        let free = || rlt_torch::device_memory(DEVICE).unwrap().unwrap().free_bytes;
        engine.sync_weights(&device, 0).unwrap();
        let (before, requests) = (free(), requests(4, 1, &SamplingParams::greedy()));
        let call = |engine: &mut Engine| {
            let mut go_on = |_| std::ops::ControlFlow::Continue(());
            engine.generate(&device, &requests, &Letters, &mut go_on).unwrap();
        };
        (0..3).for_each(|_| call(&mut engine));
        let after_three = free();
        (3..40).for_each(|_| call(&mut engine));
        let (taken, grown) = (before.saturating_sub(after_three), after_three.saturating_sub(free()));
        assert!(taken > 0, "the first calls reserve memory");
        assert!(2 * grown <= taken, "{taken} bytes after three calls, {grown} more after forty");
    });
}

/// Calls of a decoding step to its device, besides one copy to the device and one from it.
struct Step {
    waits: u64,
    launches: u64,
    graphs: u64,
}

/// Checks the summed counts of `num_ranks` ranks in two runs, one of which is 2 steps longer.
#[track_caller]
fn assert_step([short, long]: [&Counts; 2], num_ranks: u64, step: Step, case: &str) {
    let of_steps = |of: fn(&Counts) -> u64| of(long) - of(short);
    let num_steps = 2 * num_ranks;
    assert_eq!(of_steps(|counts| counts.host_to_device), num_steps, "{case}: copies in");
    assert_eq!(of_steps(|counts| counts.device_to_host), num_steps, "{case}: copies out");
    assert_eq!(of_steps(|counts| counts.waits), num_steps * step.waits, "{case}: waits");
    assert_eq!(of_steps(|counts| counts.launches), num_steps * step.launches, "{case}: launches");
    assert_eq!(of_steps(|counts| counts.graph_launches), num_steps * step.graphs, "{case}: graphs");
}

const COUNTED: &str = "a_step_costs_two_copies_and_nine_launches_a_layer_or_one_graph";

/// Samples in the process `COUNTED`: `batch` sequences of `num_tokens` tokens.
fn counted(batch: u64, num_tokens: usize, uses_graphs: bool) {
    let device = device_decoder("llama");
    let sampling = SamplingParams { ignore_eos: true, ..truncated() };
    let request = Request {
        images: Vec::new(),
        prompt: (5..16).collect(),
        seeds: (0..batch).collect(),
        sampling,
        max_new_tokens: num_tokens,
    };
    let options = EngineOptions { max_num_seqs: 256, uses_graphs, ..EngineOptions::default() };
    let (completions, _) = sampled(&device, options, &[request]);
    assert!(completions[0].iter().all(|completion| completion.tokens.len() == num_tokens));
}

#[test]
fn a_step_costs_two_copies_and_nine_launches_a_layer_or_one_graph() {
    let variable = |name: &str| std::env::var(name).unwrap().parse::<usize>().unwrap();
    if is_inside() {
        let uses_graphs = variable("RLT_TEST_GRAPHS") == 1;
        return counted(variable("RLT_TEST_BATCH") as u64, variable("RLT_TEST_TOKENS"), uses_graphs);
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
    const LAYERS: u64 = 2;
    // The two lengths differ by 2 steps, in which one cache block is filled.
    for batch in [1, 16, 256] {
        for (uses_graphs, launches, graphs) in [(true, 0, 1), (false, 9 * LAYERS + 8, 0)] {
            // A graph contains the launches of a step without graphs, for any batch; 256 rows are slow.
            if batch == 256 && uses_graphs {
                continue;
            }
            let (short, long) = (counts(batch, 6, uses_graphs), counts(batch, 8, uses_graphs));
            let case = format!("batch {batch}, graphs: {uses_graphs}");
            assert_step([&short, &long], 1, Step { waits: 1, launches, graphs }, &case);
        }
    }
}

#[test]
fn the_launches_of_a_prefill_do_not_depend_on_the_number_of_prompts() {
    on_device("the_launches_of_a_prefill_do_not_depend_on_the_number_of_prompts", || {
        let device = device_decoder("llama");
        let launches = |num_prompts: u32| {
            // Each prompt has more than one token, and no two prompts have the same length.
            let mut requests = requests(num_prompts + 1, 1, &SamplingParams::greedy());
            requests.remove(0);
            requests.iter_mut().for_each(|request| request.max_new_tokens = 1);
            let mut engine = Engine::new(options());
            engine.sync_weights(&device, 0).unwrap();
            let before = rlt_devices::driver::counts().unwrap();
            let mut go_on = |_| std::ops::ControlFlow::Continue(());
            engine.generate(&device, &requests, &Letters, &mut go_on).unwrap();
            assert_eq!(engine.stats().num_steps, 1);
            let after = rlt_devices::driver::counts().unwrap();
            let sent = after.host_to_device - before.host_to_device;
            (after.launches - before.launches, sent, after.waits - before.waits)
        };
        let one = launches(1);
        assert_eq!([launches(3), launches(11)], [one, one]);
    });
}
