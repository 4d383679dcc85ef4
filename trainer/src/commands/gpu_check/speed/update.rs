//! Measures the MFU of an update: its FLOP/s as a fraction of the GPU's measured maximum.

use std::time::Instant;

use serde_json::json;

use super::super::shapes::{llama_135m, on_device};
use super::super::workload::random_demonstrations;
use super::super::{Failure, Finding, Report};
use super::prediction::{self, UpdateLoad, with_prediction};
use super::{GPU, actor, measured, model_flop, peak};
use crate::commands::measure::wait;
use crate::roles::actor::Actor;
use crate::roles::actor::update::{UpdatePlan, update};
use crate::roles::objective::supervised_objective;

/// Number of measured updates, after one that is not measured; the fastest counts.
const ROUNDS: usize = 4;

pub(in super::super) fn check(report: &mut Report<'_>) -> Result<(), Failure> {
    let (num_sequences, len, max_tokens) = on_device((32, 1024, 8192), (4, 16, 32));
    let load = UpdateLoad { num_sequences, len, max_tokens };
    report(of_load(&mut actor(&llama_135m()?)?, &load)?)
}

/// Measures updates of `actor` with a load; the fastest counts.
pub(super) fn of_load(actor: &mut Actor, load: &UpdateLoad) -> Result<Finding, Failure> {
    let config = actor.learner.decoder().config.clone();
    let UpdateLoad { num_sequences, len, max_tokens } = *load;
    let best = fastest(actor, load)?;
    let tokens = (num_sequences * len) as f64;
    let flop = model_flop(&config, [tokens, tokens - num_sequences as f64, len as f64 / 2.0]);
    let others = [
        ("parameters", json!(config.parameter_count().total())),
        ("dtype", json!("bf16")),
        ("tokens", json!(tokens)),
        ("maxTokensPerMicroBatch", json!(max_tokens)),
        ("modelFlop", json!(flop)),
        ("mfu", json!(peak().map(|machine| flop / best / machine.flops.bf16))),
    ];
    let finding = measured([("tokensPerSecond", tokens / best), ("updateSeconds", best)], others);
    Ok(with_prediction(finding, |machine| prediction::of_update(&config, load, machine)))
}

/// Returns the seconds of the fastest update with random tokens.
fn fastest(actor: &mut Actor, load: &UpdateLoad) -> Result<f64, Failure> {
    let UpdateLoad { num_sequences, len, max_tokens } = *load;
    let batch = random_demonstrations(&vec![len; num_sequences], actor.learner.decoder().config.vocab_size);
    let plan = UpdatePlan {
        objective: supervised_objective(),
        groups_per_update: num_sequences,
        num_epochs: 1,
        max_tokens,
        learning_rate: 1e-5,
        seed: 0,
    };
    let mut best = f64::INFINITY;
    for round in 0..=ROUNDS {
        let started = Instant::now();
        update(actor, &batch, &plan)?;
        wait(GPU);
        if round > 0 {
            best = best.min(started.elapsed().as_secs_f64());
        }
    }
    Ok(best)
}
