//! Scoring and updates on a device: results equal the CPU's. The number of launches does not depend on the
//! samples, and nothing waits between micro-batches.

use std::path::Path;

use rlt_api::spec::LoraSpec;
use rlt_core::batch::Batch;
use rlt_core::fixtures::{batch_of_lens, varied_token};
use rlt_core::loss::{Aggregation, Gspo, Objective, PolicyLoss, Vanilla};
use rlt_decoder::{Adapter, Decoder, LoadOptions};
use rlt_models::ModelConfig;
use rlt_parallel::Ranks;
use rlt_trainer::roles::actor::update::{UpdatePlan, update};
use rlt_trainer::roles::actor::{Actor, ActorOptions};
use rlt_trainer::roles::optim::{AdamW, AdamWOptions};
use serde_json::json;
use tch::{Device, Kind, Tensor};

use crate::asked::{Asked, asked_by};
use crate::process::on_device;

/// Rollout groups, each by the length of its prompt and those of its completions.
pub(crate) type Groups<'a> = &'a [(usize, &'a [usize])];

pub(crate) const FEW: Groups<'static> = &[(40, &[30, 30])];
pub(crate) const MANY: Groups<'static> =
    &[(21, &[9, 1, 30, 14]), (7, &[12]), (1, &[5, 8]), (40, &[3, 3, 3]), (5, &[2, 2, 2, 2])];
pub(crate) const LARGE: usize = 4096;
pub(crate) const SMALL: usize = 64;

pub(crate) fn batch(groups: Groups<'_>) -> Batch {
    let batch = batch_of_lens(groups, varied_token);
    let num_tokens = batch.rows.num_tokens();
    Batch {
        old_logprobs: Some((0..num_tokens).map(|at| -3.0 + (at as f64).cos()).collect()),
        advantages: (0..num_tokens).map(|at| (at as f64).sin()).collect(),
        ..batch
    }
}

fn decoder(family: &str, device: Device, compute: Kind) -> Decoder {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../trainer/tests/fixtures/models");
    let options = LoadOptions { device, compute, trainable: true, ..LoadOptions::default() };
    Decoder::load(&fixtures.join(family), &options).unwrap()
}

pub(crate) fn actor(family: &str, device: Device, compute: Kind) -> Actor {
    actor_of(decoder(family, device, compute))
}

fn actor_of(decoder: Decoder) -> Actor {
    actor_with(decoder, false)
}

fn actor_with(decoder: Decoder, activation_checkpointing: bool) -> Actor {
    // The optimizer divides a gradient by its size. With the default epsilon of 1e-8, a gradient that is
    // little more than the rounding of its sum would move a weight as far as any other, and rounding depends
    // on the CPU.
    let options = AdamWOptions { epsilon: 1e-5, ..AdamWOptions::default() };
    let optimizer = AdamW::new(decoder.trainable_parameters(), options).unwrap();
    let options = ActorOptions {
        temperature: 0.9,
        head_chunk_tokens: LARGE,
        activation_checkpointing,
        max_grad_norm: 1.0,
    };
    Actor::new(decoder, optimizer, options, Ranks::alone())
}

/// Plan of two passes over the batch. The second pass is off-policy, so that clipping has an effect.
pub(crate) fn plan(policy: PolicyLoss, max_tokens: usize) -> UpdatePlan {
    let aggregation = Aggregation::TokenMean;
    let objective = Objective { policy, aggregation, kl: None, entropy_coefficient: 0.01, positive: None };
    UpdatePlan {
        objective,
        groups_per_update: usize::MAX,
        num_epochs: 2,
        max_tokens,
        learning_rate: 1e-4,
        seed: 5,
    }
}

pub(crate) const VANILLA: PolicyLoss =
    PolicyLoss::Vanilla(Vanilla { clip_low: 0.2, clip_high: 0.2, dual_clip: Some(3.0) });

/// The scores, the report and the weights after an update.
pub(crate) fn learned_by(actor: &mut Actor, policy: PolicyLoss, max_tokens: usize) -> (Vec<f64>, Vec<f64>) {
    let batch = batch(MANY);
    let scores = actor.score(&batch, Adapter::On, max_tokens).unwrap();
    let report = update(actor, &batch, &plan(policy, max_tokens)).unwrap();
    let mut numbers = [scores.logprobs, scores.entropies, report.actor_logprobs.clone()].concat();
    let metrics = report.metrics(&plan(policy, max_tokens));
    numbers.extend(metrics.into_values());
    let flat = |tensor: &Tensor| -> Vec<f64> {
        Vec::try_from(tensor.detach().to_device(Device::Cpu).to_kind(Kind::Double).reshape([-1])).unwrap()
    };
    let parameters = actor.learner.decoder().trainable_parameters();
    (numbers, parameters.iter().flat_map(|(_, weight)| flat(weight)).collect())
}

pub(crate) fn largest_difference(one: &[f64], other: &[f64]) -> f64 {
    assert_eq!(one.len(), other.len());
    let differences = one.iter().zip(other).map(|(one, other)| (one - other).abs() / one.abs().max(1.0));
    differences.fold(0.0, f64::max)
}

#[test]
fn an_update_on_a_device_is_the_cpus() {
    on_device("passes::an_update_on_a_device_is_the_cpus", || {
        let device = Device::Cuda(0);
        let gspo = PolicyLoss::Gspo(Gspo { clip_low: 3e-4, clip_high: 4e-4 });
        for (family, policy) in [("qwen3", VANILLA), ("qwen2-window", VANILLA), ("gemma", gspo)] {
            for max_tokens in [LARGE, SMALL] {
                let cpu = learned_by(&mut actor(family, Device::Cpu, Kind::Float), policy, max_tokens);
                let gpu = learned_by(&mut actor(family, device, Kind::Float), policy, max_tokens);
                // Sums of fp32 have another order, and weights have moved by two steps of 1e-4.
                let off = largest_difference(&cpu.0, &gpu.0);
                assert!(off < 2e-4, "{family} in passes of {max_tokens}: numbers off by {off}");
                let off = largest_difference(&cpu.1, &gpu.1);
                assert!(off < 2e-5, "{family} in passes of {max_tokens}: weights off by {off}");
            }
        }
    });
}

#[test]
fn flash_attention_in_bf16_scores_as_the_cpu_does() {
    on_device("passes::flash_attention_in_bf16_scores_as_the_cpu_does", || {
        let device = Device::Cuda(0);
        for family in ["qwen3", "mistral", "gemma"] {
            let score = |device, compute| {
                let scores = actor(family, device, compute).score(&batch(MANY), Adapter::On, LARGE).unwrap();
                [scores.logprobs, scores.entropies].concat()
            };
            let exact = score(Device::Cpu, Kind::Float);
            let (cpu, gpu) = (score(Device::Cpu, Kind::BFloat16), score(device, Kind::BFloat16));
            // Both round to 8 bits at every operation, so the device must not be much less exact than the
            // CPU.
            let (cpu, gpu) = (largest_difference(&exact, &cpu), largest_difference(&exact, &gpu));
            assert!(gpu < 2.0 * cpu + 1e-3, "{family}: off by {gpu}, the CPU by {cpu}");
        }
    });
}

/// Returns counts of the work that one update requests of the device.
fn asked_by_update(device: Device, groups: Groups<'_>, max_tokens: usize, policy: PolicyLoss) -> Asked {
    let (mut actor, batch) = (actor("qwen3", device, Kind::Float), batch(groups));
    let plan = UpdatePlan { num_epochs: 1, ..plan(policy, max_tokens) };
    // The first update loads libraries and kernels.
    update(&mut actor, &batch, &plan).unwrap();
    let (report, asked) = asked_by(|| update(&mut actor, &batch, &plan).unwrap());
    assert_eq!(report.num_micro_batches > 1, max_tokens == SMALL && groups.len() > 1);
    asked
}

#[test]
fn an_update_waits_once_and_launches_as_much_for_many_samples_as_for_few() {
    let name = "passes::an_update_waits_once_and_launches_as_much_for_many_samples_as_for_few";
    on_device(name, || {
        let device = Device::Cuda(0);
        let [few, many, split] = [(FEW, LARGE), (MANY, LARGE), (MANY, SMALL)]
            .map(|(groups, max_tokens)| asked_by_update(device, groups, max_tokens, VANILLA));
        println!("few {few:?}\nmany {many:?}\nsplit {split:?}");
        assert_eq!(few.launches, many.launches, "launches of one micro-batch");
        assert_eq!([few.waits, many.waits, split.waits], [1, 1, 1]);
        // Copies to the device: tokens and segments, derivatives, and the tables of the norm and of the
        // optimizer.
        assert_eq!([few.host_to_device, many.host_to_device], [4, 4]);
        // Copies to the host: log-probs and entropies, and the norm of the gradients.
        assert_eq!([few.device_to_host, many.device_to_host], [2, 2]);
    });
}

/// Configuration of a model with this number of layers.
pub(crate) fn layered_config(num_layers: usize) -> ModelConfig {
    let config = json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 64,
        "intermediate_size": 96, "num_hidden_layers": num_layers, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 96, "max_position_embeddings": 256,
        "rms_norm_eps": 1e-6, "rope_theta": 10_000.0, "hidden_act": "silu", "tie_word_embeddings": true,
        "initializer_range": 0.1, "bos_token_id": null, "eos_token_id": null, "pad_token_id": null
    });
    ModelConfig::from_json(&config).unwrap()
}

/// A model on a device with this number of layers, and with an adapter if there is one.
fn layered(num_layers: usize, lora: Option<&LoraSpec>) -> Decoder {
    let config = layered_config(num_layers);
    let options = LoadOptions { device: Device::Cuda(0), trainable: true, ..LoadOptions::default() };
    let mut decoder = Decoder::from_config(&config, 3, &options).unwrap();
    if let Some(spec) = lora {
        decoder.attach_lora_spec(spec, 1).unwrap();
    }
    decoder
}

/// Work that the host does for each token or layer shows as copies to or from the device, or as waits.
#[test]
fn copies_and_waits_of_an_update_depend_on_neither_tokens_nor_layers() {
    on_device("passes::copies_and_waits_of_an_update_depend_on_neither_tokens_nor_layers", || {
        let adapter = LoraSpec { rank: 4, ..LoraSpec::default() };
        let magnitudes = LoraSpec { dora: true, ..adapter.clone() };
        for (what, lora, is_checkpointing) in [
            ("all weights", None, false),
            ("all weights with activation checkpointing", None, true),
            ("an adapter", Some(&adapter), false),
            ("an adapter with magnitudes", Some(&magnitudes), false),
        ] {
            let copies_and_waits = |num_layers, groups| {
                let mut actor = actor_with(layered(num_layers, lora), is_checkpointing);
                let (batch, plan) = (batch(groups), UpdatePlan { num_epochs: 1, ..plan(VANILLA, LARGE) });
                // The first update loads libraries and kernels.
                update(&mut actor, &batch, &plan).unwrap();
                let asked = asked_by(|| update(&mut actor, &batch, &plan).unwrap()).1;
                [asked.host_to_device, asked.device_to_host, asked.waits]
            };
            assert_eq!(copies_and_waits(1, FEW), copies_and_waits(3, MANY), "{what}");
        }
    });
}

/// A kernel draws the masks; each mask that the host draws would be a copy to the device.
#[test]
fn dropout_of_an_adapter_copies_nothing_to_the_device() {
    on_device("passes::dropout_of_an_adapter_copies_nothing_to_the_device", || {
        let asked = |dropout: f64| {
            let mut decoder = decoder("qwen3", Device::Cuda(0), Kind::Float);
            let spec = LoraSpec { rank: 4, dropout, ..LoraSpec::default() };
            decoder.attach_lora_spec(&spec, 1).unwrap();
            let (mut actor, batch) = (actor_of(decoder), batch(FEW));
            let plan = UpdatePlan { num_epochs: 1, ..plan(VANILLA, LARGE) };
            actor.learner.set_dropout_seed(Some(7));
            update(&mut actor, &batch, &plan).unwrap();
            asked_by(|| update(&mut actor, &batch, &plan).unwrap()).1
        };
        let (without, with) = (asked(0.0), asked(0.1));
        let copies = |asked: &Asked| [asked.host_to_device, asked.device_to_host, asked.waits];
        assert_eq!(copies(&with), copies(&without), "{with:?} {without:?}");
        assert!(with.launches > without.launches, "masks are drawn: {with:?} {without:?}");
    });
}

#[test]
fn scoring_waits_once_for_all_micro_batches() {
    on_device("passes::scoring_waits_once_for_all_micro_batches", || {
        let device = Device::Cuda(0);
        let actor = actor("qwen3", device, Kind::Float);
        let asked = |groups, max_tokens| {
            let batch = batch(groups);
            actor.score(&batch, Adapter::On, max_tokens).unwrap();
            asked_by(|| actor.score(&batch, Adapter::On, max_tokens).unwrap()).1
        };
        let (few, many, split) = (asked(FEW, LARGE), asked(MANY, LARGE), asked(MANY, SMALL));
        assert_eq!(few.launches, many.launches, "launches of one micro-batch");
        // No thread waits if the values were copied before they are requested.
        assert!([few.waits, many.waits, split.waits].iter().all(|waits| *waits <= 1), "{few:?} {split:?}");
        assert_eq!([few.host_to_device, few.device_to_host], [1, 1]);
    });
}
