//! Mixtures of experts trained on a device: results equal the CPU's. The number of launches depends on
//! neither tokens nor routes, and nothing waits for the routes.

use rlt_core::loss::PolicyLoss;
use rlt_decoder::Adapter;
use rlt_trainer::roles::actor::Actor;
use rlt_trainer::roles::actor::update::{UpdatePlan, update};
use serde_json::{Value, json};
use tch::{Device, Kind};

use crate::asked::asked_by;
use crate::passes::{FEW, LARGE, MANY, SMALL, VANILLA, actor, batch, largest_difference, learned_by, plan};
use crate::process::on_device;
use crate::run::{Run, difference, merge};

const FAMILIES: [&str; 3] = ["mixtral", "qwen2-moe", "qwen3-moe"];

/// An actor of a mixture of experts, with the routers' auxiliary loss if there is a coefficient.
fn mixture(family: &str, (device, compute): (Device, Kind), coefficient: Option<f64>) -> Actor {
    actor(family, device, compute).with_router_loss(coefficient)
}

#[test]
fn an_update_of_a_mixture_on_a_device_is_the_cpus() {
    on_device("experts::an_update_of_a_mixture_on_a_device_is_the_cpus", || {
        for family in FAMILIES {
            for (coefficient, max_tokens) in [(None, LARGE), (Some(0.02), SMALL)] {
                let learned = |device| {
                    let mut actor = mixture(family, (device, Kind::Float), coefficient);
                    learned_by(&mut actor, VANILLA, max_tokens)
                };
                let (cpu, gpu) = (learned(Device::Cpu), learned(Device::Cuda(0)));
                let off = largest_difference(&cpu.0, &gpu.0);
                assert!(off < 2e-4, "{family}: numbers off by {off}");
                let off = largest_difference(&cpu.1, &gpu.1);
                assert!(off < 2e-5, "{family}: weights off by {off}");
            }
        }
    });
}

#[test]
fn mixtures_in_bf16_score_on_a_device_as_on_the_cpu() {
    on_device("experts::mixtures_in_bf16_score_on_a_device_as_on_the_cpu", || {
        for family in FAMILIES {
            let score = |device, compute| {
                let scores = actor(family, device, compute).score(&batch(MANY), Adapter::On, LARGE).unwrap();
                [scores.logprobs, scores.entropies].concat()
            };
            let exact = score(Device::Cpu, Kind::Float);
            let (cpu, gpu) = (score(Device::Cpu, Kind::BFloat16), score(Device::Cuda(0), Kind::BFloat16));
            // Means are compared, because a choice among nearly equal experts may move the log-prob of a
            // single token by any amount.
            let off = |narrow: &[f64]| {
                let sum: f64 = exact.iter().zip(narrow).map(|(exact, narrow)| (exact - narrow).abs()).sum();
                sum / exact.len() as f64
            };
            let (cpu, gpu) = (off(&cpu), off(&gpu));
            assert!(gpu < 2.0 * cpu + 1e-3, "{family}: off by {gpu}, the CPU by {cpu}");
        }
    });
}

#[test]
fn an_update_of_a_mixture_waits_once_and_launches_as_much_wherever_tokens_go() {
    let test = "experts::an_update_of_a_mixture_waits_once_and_launches_as_much_wherever_tokens_go";
    on_device(test, || {
        for family in FAMILIES {
            let asked = |groups, max_tokens| {
                let mut actor = mixture(family, (Device::Cuda(0), Kind::Float), None);
                let (batch, plan) = (batch(groups), one_epoch(VANILLA, max_tokens));
                update(&mut actor, &batch, &plan).unwrap();
                asked_by(|| update(&mut actor, &batch, &plan).unwrap()).1
            };
            let (few, many, split) = (asked(FEW, LARGE), asked(MANY, LARGE), asked(MANY, SMALL));
            assert_eq!(few.launches, many.launches, "{family}: launches of one micro-batch");
            assert_eq!([few.waits, many.waits, split.waits], [1, 1, 1], "{family}");
            // Tokens and segments; derivatives; the tables of the norm and of the optimizer.
            assert_eq!([few.host_to_device, many.host_to_device], [4, 4], "{family}");
            assert_eq!([few.device_to_host, many.device_to_host], [2, 2], "{family}");
        }
    });
}

fn one_epoch(policy: PolicyLoss, max_tokens: usize) -> UpdatePlan {
    UpdatePlan { num_epochs: 1, ..plan(policy, max_tokens) }
}

/// The tiny job with experts, with steps so small that they amplify rounding errors little.
fn job(changes: &Value) -> Value {
    let mut job = json!({
        "model": { "architecture": {
            "family": "Qwen3Moe", "experts": { "count": 4, "perToken": 2 }, "tieWordEmbeddings": false
        } },
        "training": {
            "promptsPerStep": 3, "routerAuxLossCoef": 0.01, "optimizer": { "learningRate": 0.001 }
        }
    });
    merge(&mut job, changes);
    job
}

#[test]
fn trainings_of_a_mixture_on_one_device_and_sharded_on_two_are_the_cpus() {
    let cpu = Run::new(0, &job(&json!({})));
    assert!(cpu.steps().iter().any(|step| step["moe/route_agreement"].as_f64() == Some(1.0)));
    let one = Run::new(1, &job(&json!({})));
    assert!(difference(&cpu, &one) <= 1e-5, "one device is off by {}", difference(&cpu, &one));
    let sharded = job(&json!({ "workers": { "count": 2, "mesh": { "dpShard": 2 } } }));
    let off = difference(&cpu, &Run::new(2, &sharded));
    assert!(off <= 1e-5, "two devices are off by {off}");
}

/// Each device has one of two key heads, and half of the width of every expert.
#[test]
fn experts_whose_width_two_devices_share_train_as_on_one_device() {
    let heads = json!({ "model": { "architecture": { "numHeads": 4, "numKvHeads": 2, "headDim": 8 } } });
    let one = Run::new(1, &job(&heads));
    let mut cut = heads;
    merge(&mut cut, &json!({ "workers": { "count": 2, "mesh": { "tp": 2 } } }));
    let off = difference(&one, &Run::new(2, &job(&cut)));
    assert!(off <= 1e-5, "off by {off}");
}

#[test]
fn adapters_of_experts_train_on_a_device_as_on_the_cpu() {
    let lora = json!({
        "rank": 4, "alpha": 8, "targetParameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    });
    let adapted = job(&json!({ "model": { "lora": lora } }));
    let off = difference(&Run::new(0, &adapted), &Run::new(1, &adapted));
    assert!(off <= 1e-5, "off by {off}");
}
