//! Sequences for the benchmarks of the update.

use rlt_core::batch::Batch;
use rlt_trainer::roles::actor::update::UpdatePlan;
use rlt_trainer::roles::objective::supervised_objective;

/// Lengths of 16 sequences, with a long tail.
pub(crate) fn long_tailed() -> anyhow::Result<Vec<usize>> {
    Ok(serde_json::from_str(include_str!("lens.json"))?)
}

/// Plan of one update on all of `batch`.
pub(crate) fn plan(batch: &Batch) -> UpdatePlan {
    UpdatePlan {
        objective: supervised_objective(),
        groups_per_update: batch.sequences.len(),
        num_epochs: 1,
        max_tokens: 4096,
        learning_rate: 1e-5,
        seed: 0,
    }
}
