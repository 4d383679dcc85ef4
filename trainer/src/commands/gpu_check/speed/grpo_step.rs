//! Measures a full GRPO step in bf16, and the same work by transformers if Python has it.

use std::time::Duration;

use rlt_models::ModelConfig;
use serde_json::json;

use super::super::shapes::{Size, config, on_device};
use super::super::workload::{GrpoLoad, GrpoTimes, GrpoWorkload};
use super::super::{Failure, Finding, Report};
use super::peer::{self, PeerTimes};
use super::prediction::{self, with_prediction};
use super::{GPU, actor, measured, model_flop, peak};
use crate::roles::reference::{CopyOptions, FrozenPolicy};

/// Number of measured steps, after one that is not measured; the fastest counts.
const ROUNDS: usize = 2;
/// Number of bytes per parameter: fp32 weight, gradient and two moments, and bf16 copies of reference and
/// rollout.
const BYTES_PER_PARAMETER: u64 = 4 * 4 + 2 * 2;
/// Number of bytes for activations, logits and cache, of our step or of the peer's.
const BYTES_BESIDES: u64 = 24 << 30;

pub(in super::super) fn check(size: Size, has_peer: bool, report: &mut Report<'_>) -> Result<(), Failure> {
    let (document, load) = (size.document(), load());
    let config = config(&document)?;
    if let Some(reason) = lacks_memory(&config)? {
        return report(Finding::skipped(reason).with([("model", json!(size.name()))]));
    }
    // The peer runs first: its process releases all its memory at its end, whereas this process keeps
    // libtorch's cached blocks.
    let peer = has_peer.then(|| peer::times(&document, load, ROUNDS, peer_limit(size)));
    let (line, times) = own_step(size, &config, load)?;
    report(line)?;
    peer.map_or(Ok(()), |peer| report(peer_line(size, peer, Some(&times))))
}

/// Measures our step of a load without a peer.
pub(super) fn of_load(size: Size, load: GrpoLoad) -> Result<Finding, Failure> {
    let config = config(&size.document())?;
    match lacks_memory(&config)? {
        Some(reason) => Ok(Finding::skipped(reason).with([("model", json!(size.name()))])),
        None => Ok(own_step(size, &config, load)?.0),
    }
}

/// Measures our step; returns its line with the prediction, and its times.
fn own_step(size: Size, config: &ModelConfig, load: GrpoLoad) -> Result<(Finding, GrpoTimes), Failure> {
    let times = times(config, load)?;
    let line = own_line(size, config, load, &times);
    Ok((with_prediction(line, |machine| prediction::of_step(config, &load, machine)), times))
}

/// Measures only the peer's step.
pub(in super::super) fn peer_alone(size: Size, report: &mut Report<'_>) -> Result<(), Failure> {
    report(peer_line(size, peer::times(&size.document(), load(), ROUNDS, peer_limit(size)), None))
}

/// Returns the peer's time limit: most of the check's, with enough left for our own step.
fn peer_limit(size: Size) -> Duration {
    Duration::from_secs(match size {
        Size::Small => 95,
        Size::Large => 110,
    })
}

fn load() -> GrpoLoad {
    let full = GrpoLoad {
        num_prompts: 8,
        samples_per_prompt: 8,
        prompt_len: 256,
        new_tokens: 256,
        max_tokens: 4096,
    };
    let tiny =
        GrpoLoad { num_prompts: 2, samples_per_prompt: 2, prompt_len: 8, new_tokens: 4, max_tokens: 64 };
    on_device(full, tiny)
}

fn lacks_memory(config: &ModelConfig) -> Result<Option<String>, Failure> {
    let Some(memory) = rlt_torch::device_memory(GPU)? else { return Ok(None) };
    let needed = config.parameter_count().total() * BYTES_PER_PARAMETER + on_device(BYTES_BESIDES, 0);
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    Ok((needed > memory.free_bytes).then(|| {
        let (needed, free) = (gib(needed), gib(memory.free_bytes));
        format!("the step takes about {needed:.0} GiB, and {free:.0} are free on this GPU")
    }))
}

fn times(config: &ModelConfig, load: GrpoLoad) -> Result<GrpoTimes, Failure> {
    let (actor, folder) = (actor(config)?, tempfile::tempdir()?);
    let reference = FrozenPolicy::copy_of(&actor, &CopyOptions::in_folder(folder.path(), false))?;
    let mut workload = GrpoWorkload::new(actor, Some(reference), load);
    workload.step()?;
    let rounds = (0..ROUNDS).map(|_| workload.step()).collect::<Result<Vec<_>, _>>()?;
    let fastest = rounds.into_iter().min_by(|one, other| one.seconds().total_cmp(&other.seconds()));
    fastest.ok_or_else(|| "no step was measured".into())
}

fn own_line(size: Size, config: &ModelConfig, load: GrpoLoad, times: &GrpoTimes) -> Finding {
    let context = (load.prompt_len + load.new_tokens) as f64 / 2.0;
    let tokens = [times.num_computed_tokens as f64, times.num_new_tokens as f64, context];
    let flop = model_flop(config, tokens);
    let rates = [
        ("stepSeconds", times.seconds()),
        ("rolloutSeconds", times.rollout_seconds),
        ("referenceSeconds", times.reference_seconds),
        ("updateSeconds", times.update_seconds),
        ("rolloutTokensPerSecond", times.num_new_tokens as f64 / times.rollout_seconds),
    ];
    let others = [
        ("model", json!(size.name())),
        ("parameters", json!(config.parameter_count().total())),
        ("dtype", json!("bf16")),
        ("prompts", json!(load.num_prompts)),
        ("samplesPerPrompt", json!(load.samples_per_prompt)),
        ("promptTokens", json!(load.prompt_len)),
        ("newTokens", json!(load.new_tokens)),
        ("gradNorm", json!(times.grad_norm)),
        ("updateMfu", json!(peak().map(|machine| flop / times.update_seconds / machine.flops.bf16))),
    ];
    measured(rates, others)
}

/// Reports the peer's times, and their ratio to ours if `own` is measured.
fn peer_line(size: Size, peer: Result<PeerTimes, peer::Unmeasured>, own: Option<&GrpoTimes>) -> Finding {
    let model = [("model", json!(size.name()))];
    let peer = match peer {
        Ok(peer) => peer,
        Err(peer::Unmeasured::Missing(reason)) => return Finding::skipped(reason).with(model),
        Err(peer::Unmeasured::Failed(error)) => {
            return Finding::new(false, [("error", json!(error))]).with(model);
        }
    };
    let finding = measured(
        [
            ("peerStepSeconds", peer.seconds()),
            ("peerRolloutSeconds", peer.rollout_seconds),
            ("peerReferenceSeconds", peer.reference_seconds),
            ("peerUpdateSeconds", peer.update_seconds),
        ],
        [("peer", json!(peer.versions)), ("endedAtItsLimit", json!(peer.was_ended))],
    )
    .with(model);
    let Some(own) = own else { return finding };
    finding.with([
        ("ratioOfStep", json!(peer.seconds() / own.seconds())),
        ("ratioOfRollout", json!(peer.rollout_seconds / own.rollout_seconds)),
        ("ratioOfReference", json!(peer.reference_seconds / own.reference_seconds)),
        ("ratioOfUpdate", json!(peer.update_seconds / own.update_seconds)),
    ])
}
