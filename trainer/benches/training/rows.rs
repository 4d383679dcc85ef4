//! Sequences that benchmarks of the update learn from.

use rlt_core::batch::{Batch, Demonstration};
use rlt_core::sampling::draw;
use rlt_core::types::TokenId;
use rlt_trainer::objective::supervised_objective;
use rlt_trainer::update::UpdatePlan;

/// 16 lengths with a long tail.
pub(crate) fn long_tailed() -> anyhow::Result<Vec<usize>> {
    Ok(serde_json::from_str(include_str!("lens.json"))?)
}

/// Sequences of `lens` random tokens; every token but the first of each is learned.
pub(crate) fn batch(lens: &[usize], vocab_size: usize) -> Batch {
    let demonstration = |(row_idx, len): (usize, &usize)| Demonstration {
        tokens: (0..*len as u64)
            .map(|at| (draw(row_idx as u64, at) * vocab_size as f64) as TokenId)
            .collect(),
        loss_mask: (0..*len).map(|at| at > 0).collect(),
    };
    let demonstrations: Vec<Demonstration> = lens.iter().enumerate().map(demonstration).collect();
    Batch::from_demonstrations(&demonstrations)
}

/// One update on all of `batch`.
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
