//! Tests of plans for machines: device-dependent choices, placement of terms, fit and times.

use proptest::prelude::*;
use rlt_api::spec::{Device, Precision};
use rlt_api::validate;
use rlt_models::ModelConfig;
use serde_json::{Value, json};

use super::{bytes, manifest, place, qwen, spec};
use crate::{Bound, Flops, Machine, MeanLengths, Models, Phase, Place, Plan, plan_for_lengths, plan_on};

/// Configuration of Qwen2.5-72B.
fn large() -> ModelConfig {
    ModelConfig::from_json(&json!({
        "architectures": ["Qwen2ForCausalLM"], "hidden_size": 8192, "intermediate_size": 29568,
        "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 152064,
        "max_position_embeddings": 32768, "tie_word_embeddings": false
    }))
    .unwrap()
}

fn planned(model: &ModelConfig, gpu: &str, change: impl FnOnce(&mut Value)) -> Plan {
    let mut spec = spec();
    change(&mut spec);
    let job = validate(&manifest(&spec)).unwrap();
    let models = Models { policy: Some(model.clone()), reward: Vec::new() };
    plan_on(&job, &models, &Machine::gpu(gpu).unwrap())
}

fn adapter_on(workers: u32) -> impl Fn(&mut Value) {
    move |spec| {
        spec["algorithm"]["kind"] = "GRPO".into();
        spec["model"]["lora"] = json!({"rank": 16});
        spec["workers"] = json!({
            "count": workers, "mesh": {"dpShard": workers, "rolloutTp": workers}, "device": "Cuda"
        });
    }
}

#[test]
fn the_base_of_an_adapter_is_on_gpus_once_in_the_compute_dtype() {
    let num_parameters = large().parameter_count().total();
    assert_eq!(num_parameters, 72_706_203_648);
    let plan = planned(&large(), "h100", adapter_on(8));
    let adapter = plan.parameters.unwrap().trainable;
    let memory = plan.memory.unwrap();
    let weights = bytes(&memory, Phase::Update, "weights");
    assert_eq!(weights, 2 * num_parameters.div_ceil(8) + 4 * adapter.div_ceil(8));
    assert!((16.9..17.2).contains(&(weights as f64 / f64::from(1 << 30))), "{weights}");
    // Offloaded weights take no device memory except for prefetched units.
    let offloaded = planned(&large(), "h100", |spec| {
        adapter_on(8)(spec);
        spec["training"]["offload"] = json!({"parameters": true});
    });
    let offloaded = offloaded.memory.unwrap();
    assert_eq!(place(&offloaded, Phase::Update, "weights"), Some(Place::Host));
    assert!(offloaded.peak_device_bytes < memory.peak_device_bytes);
    assert!(offloaded.peak_host_bytes >= memory.peak_host_bytes + weights);
    // Frozen weights are stored in the compute dtype, so only the adapter's weights are cast.
    let alone = planned(&qwen(), "h100", |spec| adapter_on(1)(spec));
    let adapter = alone.parameters.unwrap().trainable;
    let memory = alone.memory.unwrap();
    assert_eq!(bytes(&memory, Phase::Update, "weight casts"), 2 * adapter);
    assert_eq!(bytes(&memory, Phase::Update, "loss head casts"), 0);
}

#[test]
fn heads_of_a_width_that_kernels_do_not_read_take_the_memory_of_padded_ones_on_gpus_alone() {
    let of_width = |head_dim: usize| {
        let mut model = large();
        model.head_dim = head_dim;
        model
    };
    let cache = |model: &ModelConfig, workers: u32| {
        let plan = planned(model, "h200", adapter_on(workers));
        ["KV cache", "rollout weights"].map(|term| bytes(plan.memory.as_ref().unwrap(), Phase::Rollout, term))
    };
    for workers in [1, 8] {
        assert_eq!(cache(&of_width(75), workers), cache(&of_width(80), workers));
        assert!(cache(&of_width(75), workers) > cache(&of_width(72), workers));
    }
    let on_cpu = |model: ModelConfig| {
        let job = validate(&manifest(&spec())).unwrap();
        let models = Models { policy: Some(model), reward: Vec::new() };
        bytes(&crate::plan(&job, &models).memory.unwrap(), Phase::Rollout, "KV cache")
    };
    assert_eq!(on_cpu(of_width(75)) / 75, on_cpu(of_width(80)) / 80);
}

#[test]
fn open_choices_are_made_for_the_device() {
    let choices =
        |model: &ModelConfig, gpu: &str, change: fn(&mut Value)| planned(model, gpu, change).choices;
    let small = choices(&qwen(), "h100", |_| {});
    assert_eq!((small.precision, small.rollout_precision), (Precision::Bf16, Precision::Bf16));
    assert!(!small.activation_checkpointing, "half a billion parameters");
    let sharded = |spec: &mut Value| spec["workers"] = json!({"count": 64, "mesh": {"dpShard": 64}});
    assert!(choices(&large(), "h100", sharded).activation_checkpointing);
    // With a shard per rank and short passes there is room for all activations.
    let short = |spec: &mut Value| {
        spec["workers"] = json!({"count": 64, "mesh": {"dpShard": 64}});
        spec["data"]["maxPromptTokens"] = 8.into();
        spec["rollout"] = json!({"maxCompletionTokens": 8});
        spec["training"]["maxTokensPerMicroBatch"] = 16.into();
    };
    assert!(!choices(&large(), "b200", short).activation_checkpointing, "memory allows none");
    assert!(choices(&large(), "rtx-4090", short).activation_checkpointing);
    let written = choices(&large(), "h100", |spec| {
        spec["training"]["activationCheckpointing"] = false.into();
        spec["training"]["precision"] = "Fp16".into();
        spec["rollout"] = json!({"precision": "Fp32"});
    });
    assert_eq!((written.precision, written.rollout_precision), (Precision::Fp16, Precision::Fp32));
    assert!(!written.activation_checkpointing);
    let on_cpu = super::planned(|_| {}).choices;
    assert_eq!((on_cpu.precision, on_cpu.rollout_precision), (Precision::Fp32, Precision::Fp32));
    assert!(!on_cpu.activation_checkpointing);
}

#[test]
fn a_job_that_cannot_fit_is_reported_with_values_that_would() {
    let fit = |change: &dyn Fn(&mut Value)| planned(&qwen(), "rtx-4090", change).fit.unwrap();
    let wide = |spec: &mut Value| {
        spec["data"]["maxPromptTokens"] = 1024.into();
        spec["rollout"] = json!({"maxCompletionTokens": 1024});
        spec["training"]["maxTokensPerMicroBatch"] = 65536.into();
        spec["training"]["promptsPerStep"] = 32.into();
    };
    let misfit = fit(&wide);
    assert!(!misfit.fits && misfit.misfits[0].phase == Phase::Update, "{misfit:?}");
    assert!(misfit.misfits.iter().all(|misfit| misfit.needed_bytes > 24_564 << 20));
    let fields: Vec<&str> =
        misfit.remedies.iter().flat_map(|remedy| &remedy.fields).map(String::as_str).collect();
    assert!(fields[0].starts_with("training.maxTokensPerMicroBatch: "), "{fields:?}");
    for remedy in &misfit.remedies {
        assert!(remedy.needed_bytes <= misfit.available_bytes, "{remedy:?}");
    }
    // The job fits with the proposed value, and not with the next larger one.
    let tokens: u32 = fields[0].split([':', ' ']).nth(2).unwrap().parse().unwrap();
    let with = |tokens: u32| {
        fit(&|spec: &mut Value| {
            wide(spec);
            spec["training"]["maxTokensPerMicroBatch"] = tokens.into();
            spec["training"]["maxLogprobTokens"] = tokens.into();
        })
    };
    assert!(with(tokens).fits && !with(2 * tokens).fits, "{tokens}");
    assert!(fit(&|_| {}).fits && fit(&|_| {}).remedies.is_empty());
    // One worker can never train a full 72B model; many workers that shard it can.
    let alone = planned(&large(), "h100", |_| {}).fit.unwrap();
    let remedy = alone.remedies.first().unwrap();
    let sharded =
        remedy.fields.iter().find_map(|field| field.strip_prefix("workers.mesh.dpShard: ")).unwrap();
    let degree: u32 = sharded.split(' ').next().unwrap().parse().unwrap();
    assert!(degree <= 64, "no more GPUs than needed: {alone:?}");
    assert!(sharded.contains(" with workers.ranksPerWorker: 8"), "{alone:?}");
}

/// A node with eight GPUs is one worker, so weights are exchanged within the node.
#[test]
fn more_gpus_of_a_worker_are_proposed_before_more_workers() {
    let proposed = |workers: Value| {
        let fit = planned(&large(), "b200", |spec| {
            adapter_on(1)(spec);
            spec["workers"] = workers.clone();
        });
        let fields = fit.fit.unwrap().remedies.into_iter().flat_map(|remedy| remedy.fields);
        fields.into_iter().find(|field| field.starts_with("workers.mesh.dpShard: ")).unwrap()
    };
    for (workers, expected) in [
        (json!({"device": "Cuda"}), "workers.mesh.dpShard: 4 with workers.ranksPerWorker: 4"),
        (json!({"count": 2, "device": "Cuda"}), "workers.mesh.dpShard: 4 with workers.ranksPerWorker: 2"),
        (json!({"ranksPerWorker": 8, "device": "Cuda"}), "workers.mesh.dpShard: 4"),
    ] {
        assert_eq!(proposed(workers), expected);
    }
}

#[test]
fn a_roofline_follows_the_machine() {
    let speed = |gpu: &str| planned(&qwen(), gpu, |_| {}).speed.unwrap();
    let (h100, h200, a100) = (speed("h100"), speed("h200"), speed("a100-80gb"));
    assert!(h200.rollout_tokens_per_second > h100.rollout_tokens_per_second, "more bandwidth");
    assert!(h100.update_tokens_per_second > 2.0 * a100.update_tokens_per_second, "more FLOP/s");
    assert!((0.2..=0.5).contains(&h100.update_mfu), "{}", h100.update_mfu);
    let total: f64 = h100.phases.iter().map(|phase| phase.seconds).sum();
    assert!((total / h100.step_seconds - 1.0).abs() < 1e-9);
    let update = h100.phases.iter().find(|phase| phase.name == "update").unwrap();
    assert_eq!(update.bound, Bound::Compute);
    // Recomputation takes time, but is no FLOP of the model.
    let again = planned(&qwen(), "h100", |spec| spec["training"]["activationCheckpointing"] = true.into());
    assert!(again.speed.unwrap().update_mfu < 0.85 * h100.update_mfu);
}

/// Returns the machine of a benchmark report, with limits measured next to the benchmark in its dtype.
fn measured(gigaflops: f64, gigabytes: f64) -> Machine {
    let fp32 = 1e9 * gigaflops;
    Machine {
        name: "measured".into(),
        device: Device::Cpu,
        memory_bytes: None,
        memory_bytes_per_second: 1e9 * gigabytes,
        flops: Flops { bf16: fp32, fp16: fp32, tf32: fp32, fp32 },
        peer_bytes_per_second: 1e9 * gigabytes,
        host_bytes_per_second: 1e9 * gigabytes,
        launch_seconds: 5e-6,
    }
}

/// Returns this trainer's row of a benchmark: seconds of rollout, reference and update, and of the step.
fn reported(report: &str, contest: &str) -> [f64; 4] {
    let section = report.split("### ").find(|section| section.starts_with(&format!("{contest}\n"))).unwrap();
    let row = section.lines().find(|line| line.starts_with("| ours |")).unwrap();
    let numbers: Vec<f64> = row.split(['|', '+']).filter_map(|cell| cell.trim().parse().ok()).collect();
    [numbers[1], numbers[2], numbers[3], numbers[0]]
}

/// Returns the GFLOP/s and GB/s that were measured right after a benchmark.
fn limits(report: &str, contest: &str) -> (f64, f64) {
    let section = report.split("### ").find(|section| section.starts_with(&format!("{contest}\n"))).unwrap();
    let words: Vec<&str> = section.split_whitespace().collect();
    let before = |unit: &str| {
        let at = words.iter().position(|word| word.trim_end_matches('.') == unit).unwrap();
        words[at - 1].parse().unwrap()
    };
    (before("GFLOP/s"), before("GB/s"))
}

#[test]
fn on_cpus_the_prediction_is_within_a_third_of_the_measurement() {
    let model = ModelConfig::from_json(
        &serde_json::from_str(include_str!("../../../../trainer/benches/rollout/model.json")).unwrap(),
    )
    .unwrap();
    let report =
        include_str!("../../../../trainer/benches/reports/llama-135m_amd-epyc-avx512-bf16-2-cores.md");
    for contest in ["grpo-full-fp32", "grpo-lora-fp32", "grpo-full-bf16", "grpo-lora-bf16"] {
        // The benchmark's step: 2 prompts of 64 tokens, 8 samples of 64 tokens each, one update.
        let mut spec = spec();
        spec["data"]["maxPromptTokens"] = 64.into();
        spec["rollout"] = json!({"samplesPerPrompt": 8, "maxCompletionTokens": 64});
        spec["training"]["promptsPerStep"] = 2.into();
        spec["algorithm"]["kind"] = "GRPO".into();
        if contest.contains("lora") {
            spec["model"]["lora"] = json!({"rank": 16});
        }
        spec["training"]["precision"] = if contest.ends_with("bf16") { "Bf16" } else { "Fp32" }.into();
        let job = validate(&manifest(&spec)).unwrap();
        let (gigaflops, gigabytes) = limits(report, contest);
        let models = Models { policy: Some(model.clone()), reward: Vec::new() };
        let speed = plan_on(&job, &models, &measured(gigaflops, gigabytes)).speed.unwrap();
        let of = |name: &str| speed.phases.iter().find(|phase| phase.name == name).map_or(0.0, |p| p.seconds);
        let predicted =
            [of("rollout") + of("weight sync"), of("log-probs"), of("update"), speed.step_seconds];
        let measured = reported(report, contest);
        for (phase, (predicted, measured)) in predicted.into_iter().zip(measured).enumerate() {
            let ratio = predicted / measured;
            assert!((0.7..=1.3).contains(&ratio), "{contest}, phase {phase}: {predicted} s, {measured} s");
        }
    }
}

#[test]
fn shorter_sequences_take_the_time_of_a_job_that_allows_no_longer_ones_and_the_memory_of_the_longest() {
    let job = |prompt: u32, completion: u32| {
        let mut spec = spec();
        spec["data"]["maxPromptTokens"] = prompt.into();
        spec["rollout"] = json!({"maxCompletionTokens": completion});
        spec["training"]["maxTokensPerMicroBatch"] = 8192.into();
        spec["training"]["maxLogprobTokens"] = 8192.into();
        validate(&manifest(&spec)).unwrap()
    };
    let models = Models { policy: Some(qwen()), reward: Vec::new() };
    let machine = measured(200.0, 30.0);
    let (long, short) = (job(256, 512), job(64, 128));
    let lengths = MeanLengths::of(long.spec(), Some(64), Some(128)).unwrap();
    let planned = plan_for_lengths(&long, &models, &machine, lengths);
    let (planned_short, longest) = (plan_on(&short, &models, &machine), plan_on(&long, &models, &machine));
    assert_eq!(planned.speed, planned_short.speed);
    assert_eq!(planned.memory, longest.memory);
    assert!(longest.speed.unwrap().step_seconds > 3.0 * planned.speed.unwrap().step_seconds);
    // A missing mean defaults to the longest length, which no mean may exceed.
    assert_eq!(MeanLengths::of(long.spec(), None, None), Ok(MeanLengths::longest(long.spec())));
    for completion in [0, 513] {
        let error = MeanLengths::of(long.spec(), None, Some(completion)).unwrap_err().to_string();
        let limit = "expected 1 to 512, spec.rollout.maxCompletionTokens of the manifest";
        assert_eq!(error, format!("{completion} tokens of a completion: {limit}"));
    }
}

/// Strategy of jobs that differ in every setting that decides memory.
fn jobs() -> impl Strategy<Value = Value> {
    let training = (0u32..3, any::<bool>(), 1u32..5, prop::sample::select(vec!["Fp32", "Bf16", "Auto"]));
    (training, prop::sample::select(vec!["GRPO", "PPO", "DrGRPO"]), any::<bool>(), 1u32..4).prop_map(
        |((lora, checkpointing, budget, precision), kind, cpu, samples)| {
            let mut spec = spec();
            spec["algorithm"] = json!({"kind": kind});
            if lora > 0 {
                spec["model"]["lora"] = json!({"rank": 8 * lora});
            }
            spec["rollout"] = json!({"samplesPerPrompt": 2 * samples});
            spec["training"]["activationCheckpointing"] = checkpointing.into();
            spec["training"]["maxTokensPerMicroBatch"] = (1024 * budget).into();
            spec["training"]["precision"] = precision.into();
            spec["workers"] = json!({"device": if cpu { "Cpu" } else { "Cuda" }});
            spec
        },
    )
}

fn memory_of(spec: &Value) -> crate::MemoryPlan {
    let job = validate(&manifest(spec)).unwrap();
    let models = Models { policy: Some(qwen()), reward: Vec::new() };
    crate::plan(&job, &models).memory.unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn parts_add_up_and_peaks_are_those_of_phases(spec in jobs()) {
        let memory = memory_of(&spec);
        for phase in &memory.phases {
            let at = |place| phase.terms.iter().filter(|t| t.place == place).map(|t| t.bytes).sum::<u64>();
            prop_assert_eq!(at(Place::Device), phase.device_bytes);
            prop_assert_eq!(at(Place::Host), phase.host_bytes);
            prop_assert_eq!(phase.device_bytes + phase.host_bytes, phase.total_bytes);
            prop_assert_eq!(phase.device_bytes == 0, spec["workers"]["device"] == "Cpu");
        }
        let most = |of: fn(&crate::PhaseMemory) -> u64| memory.phases.iter().map(of).max().unwrap();
        prop_assert_eq!(memory.peak_bytes, most(|phase| phase.total_bytes));
        prop_assert_eq!(memory.peak_device_bytes, most(|phase| phase.device_bytes));
        prop_assert_eq!(memory.peak_host_bytes, most(|phase| phase.host_bytes));
    }

    #[test]
    fn offload_never_takes_more_of_the_device(spec in jobs(), which in 1u32..8) {
        let mut spec = spec;
        spec["workers"]["device"] = "Cuda".into();
        let is = |bit: u32| which & bit != 0;
        // Both plans use checkpointing, so that only the offload differs.
        spec["training"]["activationCheckpointing"] = true.into();
        let here = memory_of(&spec);
        spec["training"]["offload"] =
            json!({"parameters": is(1), "optimizer": is(2), "activations": is(4)});
        let away = memory_of(&spec);
        for (away, here) in away.phases.iter().zip(&here.phases) {
            prop_assert!(away.device_bytes <= here.device_bytes, "{:?}", away.phase);
            prop_assert!(away.host_bytes >= here.host_bytes, "{:?}", away.phase);
        }
    }

    #[test]
    fn a_higher_dp_shard_never_needs_more_memory(spec in jobs(), doublings in 1u32..4) {
        let shared = |workers: u32| {
            let mut spec = spec.clone();
            spec["workers"]["count"] = 32.into();
            spec["workers"]["mesh"] = json!({"dpShard": workers});
            memory_of(&spec)
        };
        let (few, many) = (shared(1 << doublings), shared(2 << doublings));
        for (few, many) in few.phases.iter().zip(&many.phases) {
            prop_assert!(many.total_bytes <= few.total_bytes, "{:?}", few.phase);
            prop_assert!(many.device_bytes <= few.device_bytes, "{:?}", few.phase);
        }
    }
}
