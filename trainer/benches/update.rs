//! One packed training step on a 135M-parameter Llama shape with random weights: 16 sequences of long-tailed lengths,
//! forward, backward and AdamW.
//!
//! `--lora` trains an adapter instead of all weights. The peer on the same lengths is `peers/update.py`; both answer
//! `--serve` to `peers/compare.py`.

#[path = "training/measure.rs"]
mod measure;
#[path = "training/subject.rs"]
mod subject;

use rlt_core::batch::{Batch, Demonstration};
use rlt_core::sampling::draw;
use rlt_core::types::TokenId;
use rlt_trainer::objective::supervised_objective;
use rlt_trainer::update::{UpdatePlan, update};
use serde_json::json;

fn main() -> anyhow::Result<()> {
    subject::prepare()?;
    let mut actor = subject::actor()?;
    let batch = batch(actor.decoder.config.vocab_size)?;
    let num_tokens: usize = batch.sequence_lens().iter().sum();
    let plan = UpdatePlan {
        objective: supervised_objective(),
        groups_per_update: batch.sequences.len(),
        num_epochs: 1,
        max_tokens: 4096,
        learning_rate: 1e-5,
        seed: 0,
    };
    measure::serve(&["step"], |_| {
        measure::measured(|| {
            let report = update(&mut actor, &batch, &plan)?;
            Ok(json!({
                "tokens": num_tokens,
                "micro_batches": report.num_micro_batches,
                "grad_norm": report.grad_norms.first(),
            }))
        })
    })
}

/// Every token but the first of each sequence is learned.
fn batch(vocab_size: usize) -> anyhow::Result<Batch> {
    let lens: Vec<usize> = serde_json::from_str(include_str!("training/lens.json"))?;
    let demonstration = |(row_idx, len): (usize, &usize)| Demonstration {
        tokens: (0..*len as u64)
            .map(|at| (draw(row_idx as u64, at) * vocab_size as f64) as TokenId)
            .collect(),
        loss_mask: (0..*len).map(|at| at > 0).collect(),
    };
    let demonstrations: Vec<Demonstration> = lens.iter().enumerate().map(demonstration).collect();
    Ok(Batch::from_demonstrations(&demonstrations))
}
