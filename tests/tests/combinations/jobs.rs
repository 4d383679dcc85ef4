//! Jobs in which every two facts of the table of conflicts are together, unless the table refuses them. Tests
//! of two packages train them: on CPUs and on emulated devices.

use std::collections::BTreeSet;

use rlt_api::conflicts::{CONFLICTS, ChosenDevice, Fact};
use rlt_tests::{covering_array, merge, tiny_job_with};
use serde_json::{Value, json};

/// Facts, each with those with which it cannot be set: its fields belong to a part that the job then lacks.
const WITHOUT_EFFECT: [(Fact, &[Fact]); 6] = [
    (
        Fact::FullTraining,
        &[
            Fact::MergedAdapter,
            Fact::UnmergedAdapter,
            Fact::ExpertAdapters,
            Fact::ModulesToSave,
            Fact::AdapterDropout,
            Fact::OrthogonalInit,
            Fact::AdaptedTower,
        ],
    ),
    (Fact::Dense, &[Fact::ExpertAdapters]),
    (Fact::LatentAttention, &[Fact::WideHeads]),
    (
        Fact::NoReference,
        &[
            Fact::ReferenceSp,
            Fact::ReferenceSync,
            Fact::ReferenceOffload,
            Fact::ReferencePrecision,
            Fact::RolloutTp,
            Fact::LogprobSp,
        ],
    ),
    (Fact::NoCritic, &[Fact::CriticSp, Fact::CriticPrecision]),
    (Fact::ScoredCompletions, &[Fact::RolloutTp, Fact::LogprobSp]),
];

/// A job, and the facts for which it was made.
pub(crate) struct Job {
    /// Manifest of the job.
    pub(crate) manifest: Value,
    /// Facts of the values of settings from which the manifest was made.
    pub(crate) facts: BTreeSet<Fact>,
}

impl Job {
    /// Whether `metrics` are the lines of a run that made its one step. A job that samples must also have
    /// sampled; for a step on completions of the data set, that is in the evaluation after the step.
    pub(crate) fn is_trained(&self, metrics: &[Value]) -> bool {
        let is_step = |line: &&Value| line["training/phase"] == 1 && line["step"] != 0;
        let steps: Vec<&Value> = metrics.iter().filter(is_step).collect();
        let [step] = steps[..] else { return false };
        let is_evaluated = self.facts.contains(&Fact::ScoredCompletions);
        let lengths = if is_evaluated { "val-aux/response_length/mean" } else { "response_length/mean" };
        let has_sampled = step[lengths].as_f64() > Some(0.0);
        step["training/num_skipped_updates"] == 0.0 && (has_sampled || !self.facts.contains(&Fact::Sampling))
    }
}

/// A value of a setting: the facts that it gives a job, and the fields that choose it.
struct Choice {
    facts: Vec<Fact>,
    fields: Value,
}

/// Returns the setting of the device, which has one value.
fn device(device: ChosenDevice) -> Vec<Choice> {
    let (facts, name): (&[Fact], &str) = match device {
        ChosenDevice::Cpu => (&[], "Cpu"),
        ChosenDevice::Cuda => (&[Fact::OnGpu], "Cuda"),
    };
    vec![choice(facts, json!({ "workers": { "device": name } }))]
}

fn choice(facts: &[Fact], fields: Value) -> Choice {
    Choice { facts: facts.to_vec(), fields }
}

/// A setting with two values: one is left out, the other has the facts.
fn switch(facts: &[Fact], fields: Value) -> Vec<Choice> {
    vec![choice(&[], json!({})), choice(facts, fields)]
}

fn models() -> Vec<Choice> {
    let text = |facts: &[Fact], architecture: Value| {
        let facts = [facts, &[Fact::NoVisionTower]].concat();
        choice(&facts, json!({ "model": { "architecture": architecture } }))
    };
    let dense =
        |facts: &[Fact], family: &str| text(&[facts, &[Fact::Dense]].concat(), json!({ "family": family }));
    let mixture = |facts: &[Fact], family: &str| {
        let experts = json!({ "count": 4, "perToken": 2 });
        text(&[facts, &[Fact::Experts]].concat(), json!({ "family": family, "experts": experts }))
    };
    let tower = json!({ "hiddenSize": 16, "numLayers": 1, "numHeads": 2, "patchSize": 4, "mergeSize": 2 });
    let pictures = json!({ "cells": 1, "cellPixels": 8, "maxCount": 1 });
    let vision = json!({
        "model": {
            "architecture": { "family": "Qwen2Vl", "vision": tower },
            "tokenizer": { "characters": "0123456789+= howmany?" }
        },
        "data": {
            "task": {
                "kind": "CountingPictures", "operators": null, "maxOperand": null, "pictures": pictures
            },
            "maxPromptTokens": 16
        }
    });
    vec![
        dense(&[], "Llama"),
        mixture(&[], "Qwen3Moe"),
        mixture(&[Fact::ExpertBiases, Fact::AttentionSinks], "GptOss"),
        mixture(&[Fact::LatentAttention], "DeepseekV3"),
        choice(&[Fact::Dense, Fact::VisionTower], vision),
        dense(&[Fact::AttentionSoftcap, Fact::LogitSoftcap], "Gemma2"),
        dense(&[Fact::LayerNorms, Fact::ParallelBlocks, Fact::NoClassifier], "Cohere"),
        dense(&[Fact::QkNormAllHeads], "Olmo2"),
        dense(&[Fact::NoClassifier], "Ernie45"),
    ]
}

fn algorithms() -> Vec<Choice> {
    let kl = json!({ "placement": "Loss", "coefficient": 0.1 });
    // Pairs are generated without pictures.
    let sums = json!({ "kind": "Arithmetic", "operators": ["+"], "maxOperand": 9, "pictures": null });
    let labels = [Fact::ScoredCompletions, Fact::LabelHead, Fact::NoReference, Fact::NoCritic];
    vec![
        choice(&[Fact::Sampling, Fact::NoCritic], json!({ "algorithm": { "kl": kl } })),
        choice(&[Fact::Sampling], json!({ "algorithm": { "kind": "PPO", "kl": kl } })),
        choice(
            &[Fact::NoReference, Fact::NoCritic],
            json!({ "algorithm": { "kind": "SFT" }, "rewards": null }),
        ),
        choice(
            &[Fact::ScoredCompletions, Fact::NoCritic],
            json!({ "algorithm": { "kind": "DPO" }, "data": { "task": sums }, "rewards": null }),
        ),
        // Rewards make the job sample held-out prompts.
        choice(
            &[Fact::ScoredCompletions, Fact::Sampling, Fact::NoCritic],
            json!({ "algorithm": { "kind": "DPO" }, "data": { "task": sums } }),
        ),
        choice(&labels, json!({ "algorithm": { "kind": "RewardModel" }, "rewards": null })),
    ]
}

fn adapters() -> Vec<Vec<Choice>> {
    let lora = |fields: Value| json!({ "model": { "lora": fields } });
    let new = [Fact::Adapter, Fact::NewAdapter];
    vec![
        vec![
            choice(&[Fact::FullTraining], json!({})),
            choice(&new, lora(json!({ "rank": 2 }))),
            choice(&[&new[..], &[Fact::Dora]].concat(), lora(json!({ "rank": 2, "dora": true }))),
        ],
        vec![
            choice(&[], json!({})),
            choice(&[Fact::MergedAdapter], lora(json!({ "merge": true }))),
            choice(&[Fact::UnmergedAdapter], lora(json!({ "merge": false }))),
        ],
        switch(&[Fact::ExpertAdapters], lora(json!({ "targetParameters": ["experts.down_proj"] }))),
        switch(&[Fact::ModulesToSave], lora(json!({ "modulesToSave": ["norm"] }))),
        vec![
            choice(&[], json!({})),
            choice(&[Fact::AdapterDropout], lora(json!({ "dropout": 0.1 }))),
            choice(
                &[Fact::AdapterDropout, Fact::DropoutAfter],
                lora(json!({ "dropout": 0.1, "dropoutPosition": "After" })),
            ),
        ],
        switch(&[Fact::OrthogonalInit], lora(json!({ "init": "Orthogonal" }))),
        switch(&[Fact::AdaptedTower], lora(json!({ "vlmLora": "Both" }))),
    ]
}

/// Settings of the mesh, of roles, and others that have one value besides their default.
fn switches() -> Vec<Vec<Choice>> {
    let mesh = |field: &str, degree: u32| json!({ "workers": { "mesh": { field: degree } } });
    let role = |role: &str, fields: Value| json!({ "training": { "roles": { role: fields } } });
    let bf16 = json!({ "precision": "Bf16" });
    let offloaded = json!({ "offloadParameters": true });
    vec![
        switch(&[Fact::TrainedTower], json!({ "model": { "visionTower": "Trained" } })),
        switch(&[Fact::Quantization, Fact::Quantized], json!({ "model": { "quantization": {} } })),
        switch(&[Fact::RouterLoss], json!({ "training": { "routerAuxLossCoef": 0.01 } })),
        switch(&[Fact::Tp], mesh("tp", 2)),
        switch(&[Fact::Sp], mesh("sp", 2)),
        switch(&[Fact::Ep], mesh("ep", 2)),
        switch(&[Fact::RolloutTp], mesh("rolloutTp", 2)),
        switch(&[Fact::LogprobSp], mesh("logprobSp", 2)),
        switch(&[Fact::ReferenceSp], mesh("referenceSp", 2)),
        switch(&[Fact::CriticSp], mesh("criticSp", 2)),
        switch(&[Fact::MaxTrainPrompts], json!({ "data": { "maxTrainPrompts": 8 } })),
        switch(&[Fact::ReferenceSync], json!({ "algorithm": { "referenceSync": {} } })),
        switch(&[Fact::ReferenceOffload], role("reference", offloaded)),
        switch(&[Fact::ReferencePrecision], role("reference", bf16.clone())),
        switch(&[Fact::CriticPrecision], role("critic", bf16)),
        switch(&[Fact::ReferenceShards], mesh("referenceDpShard", 1)),
        switch(&[Fact::CriticShards], mesh("criticDpShard", 1)),
    ]
}

/// Returns all settings of jobs on a device. The device comes first, so that its rows of the table prune the
/// search early.
fn settings(chosen: ChosenDevice) -> Vec<Vec<Choice>> {
    let wide = json!({ "model": { "architecture": { "headDim": 264 } } });
    let mut all = vec![device(chosen), models(), switch(&[Fact::WideHeads], wide), algorithms()];
    all.extend(adapters());
    all.extend(switches());
    all
}

/// Returns the facts that settings give jobs on a device, also those that a row refuses there.
pub(crate) fn facts_of_settings(device: ChosenDevice) -> BTreeSet<Fact> {
    settings(device).iter().flatten().flat_map(|choice| choice.facts.iter().copied()).collect()
}

/// Whether the facts contain all facts of a row of the table, or a fact that has no effect with another.
fn is_refused(facts: &BTreeSet<Fact>) -> bool {
    let has = |fact: &Fact| facts.contains(fact);
    CONFLICTS.iter().any(|conflict| has(&conflict.fact) && conflict.with.iter().all(has))
        || WITHOUT_EFFECT.iter().any(|(fact, without)| has(fact) && without.iter().any(has))
}

/// The manifest of a combination, with as many ranks as its mesh needs.
fn manifest<'a>(choices: impl Iterator<Item = &'a Choice>) -> Value {
    let mut manifest = tiny_job_with(json!({
        "model": { "architecture": { "intermediateSize": 32, "numLayers": 2, "numHeads": 4 } },
        "training": { "steps": 1 },
        "checkpoint": { "everySteps": 0 }
    }));
    choices.for_each(|choice| merge(&mut manifest["spec"], choice.fields.clone()));
    let mesh = manifest["spec"]["workers"]["mesh"].clone();
    let degree = |axis: &str| mesh[axis].as_u64().unwrap_or(1);
    // Ranks with different experts hold one replica together.
    let dp_shard = if degree("ep") > degree("sp") { 2 } else { 1 };
    let sp = ["sp", "logprobSp", "referenceSp", "criticSp"].map(degree).into_iter().max().unwrap();
    let count = (degree("tp") * sp * dp_shard).max(degree("rolloutTp"));
    let mut workers = json!({ "count": count, "mesh": { "dpShard": dp_shard } });
    for role in ["referenceDpShard", "criticDpShard"] {
        if !mesh[role].is_null() {
            workers["mesh"][role] = json!(dp_shard);
        }
    }
    merge(&mut manifest["spec"], json!({ "workers": workers }));
    manifest
}

/// Makes jobs for a device in which each two facts are together, as few as a greedy search finds.
pub(crate) fn jobs(device: ChosenDevice) -> Vec<Job> {
    let settings = settings(device);
    let facts: Vec<Vec<Vec<Fact>>> =
        settings.iter().map(|values| values.iter().map(|choice| choice.facts.clone()).collect()).collect();
    let job = |combination: Vec<usize>| {
        let chosen = settings.iter().zip(combination).map(|(values, value)| &values[value]);
        let chosen: Vec<&Choice> = chosen.collect();
        let facts = chosen.iter().flat_map(|choice| choice.facts.iter().copied()).collect();
        Job { manifest: manifest(chosen.into_iter()), facts }
    };
    covering_array(&facts, &|facts| !is_refused(facts)).into_iter().map(job).collect()
}
