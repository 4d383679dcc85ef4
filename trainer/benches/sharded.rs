//! The training step of `update.rs` on two FSDP ranks of this machine, and the memory of a rank with few
//! activations, compared with the expected saving.
//!
//! The peer is `peers/update_fsdp2.py`; both answer `--serve` to `peers/compare.py`.

#[path = "training/measure.rs"]
mod measure;
#[path = "training/rank_processes.rs"]
mod rank_processes;
#[path = "training/rows.rs"]
mod rows;
#[path = "training/shape.rs"]
mod shape;

use std::rc::Rc;

use rank_processes::RankProcesses;
use rlt_decoder::{Decoder, LoadOptions, Weights};
use rlt_parallel::{Ranks, ShardedParameters};
use rlt_trainer::commands::gpu_check::workload::random_demonstrations;
use rlt_trainer::roles::actor::Actor;
use rlt_trainer::roles::actor::update::update;
use rlt_trainer::roles::optim::{AdamW, AdamWOptions};
use serde_json::{Value, json};

const NUM_RANKS: usize = 2;
/// Sequences with few activations compared with the model, one for each rank.
const SHORT: [usize; NUM_RANKS] = [8; NUM_RANKS];
const MIB: f64 = (1 << 20) as f64;

fn main() -> anyhow::Result<()> {
    shape::prepare()?;
    let mut processes = RankProcesses::start(NUM_RANKS)?;
    rlt_torch::set_num_threads(processes.ranks.cores());
    let empty = rlt_torch::peak_own_bytes()?;
    let mut actor = actor(&processes.ranks)?;
    measure::serve(&["step", "memory"], |load| {
        let lens = if load == "memory" { SHORT.to_vec() } else { rows::long_tailed()? };
        let of_model = formula(actor.learner.decoder());
        processes.measured(load, || step(&mut actor, &lens, empty, of_model))
    })
}

fn step(actor: &mut Actor, lens: &[usize], empty: u64, formula: f64) -> anyhow::Result<Value> {
    let batch = random_demonstrations(lens, actor.learner.decoder().config.vocab_size);
    let before = actor.learner.ranks().traffic();
    let report = update(actor, &batch, &rows::plan(&batch))?;
    let own = rlt_torch::peak_own_bytes()?.saturating_sub(empty);
    Ok(json!({
        "tokens": batch.sequence_lens().iter().sum::<usize>(),
        "grad_norm": report.updates.grad_norms.first(),
        "own_mb": own as f64 / MIB,
        "formula_mb": formula / MIB,
        "sent_mb": actor.learner.ranks().traffic().since(before).sent as f64 / MIB,
    }))
}

/// Builds this rank's shard of an actor, of which it never holds the full model.
fn actor(ranks: &Ranks) -> anyhow::Result<Actor> {
    let options = LoadOptions { trainable: true, ..LoadOptions::default() };
    let weights = Weights::random_init(&shape::config()?, 0);
    let decoder = Decoder::meta(weights.config(), &options)?;
    let shards = ShardedParameters::new(&decoder, Rc::new(ranks.on_mesh(NUM_RANKS)?), None)?;
    shards.read(&weights)?;
    let optimizer = AdamW::new(shards.local_shards(), AdamWOptions::default())?;
    Ok(Actor::new(decoder, optimizer, shape::actor_options(), ranks.clone()).with_shards(shards))
}

/// Expected memory of a rank in bytes: its shard of weights, gradients and two moments, and weights and
/// gradients of the two largest unsharded units, a layer and the unit outside of the layers.
fn formula(decoder: &Decoder) -> f64 {
    const NUMBER: f64 = 4.0;
    let (mut outer, mut layer, mut all) = (0, 0, 0);
    for (name, parameter) in decoder.named_parameters() {
        let num = parameter.numel();
        all += num;
        match name.starts_with("model.layers.0.") {
            true => layer += num,
            false if name.contains(".layers.") => {}
            false => outer += num,
        }
    }
    NUMBER * (4.0 * all as f64 / NUM_RANKS as f64 + 2.0 * (outer + layer) as f64)
}
