//! Split of a batch into the updates of a step.

use std::ops::Range;

use rlt_core::batch::Batch;

/// Split of a batch into updates and micro-batches, the same for actor and critic except for the token
/// budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MiniBatches {
    /// Number of rollout groups in one update.
    pub groups_per_update: usize,
    /// Number of passes over the batch.
    pub num_epochs: usize,
    /// Token budget of one forward and backward pass on one rank.
    pub max_tokens: usize,
}

impl MiniBatches {
    /// Whether `batch` is used once, in one update: then the actor itself is its old policy.
    pub fn is_one_update(&self, batch: &Batch) -> bool {
        self.num_epochs == 1 && group_ranges(batch, self.groups_per_update).len() == 1
    }

    /// Calls `update` for each update of each epoch with the indices of both, and the update's rows of the
    /// batch.
    pub(crate) fn for_each_update<E>(
        &self,
        batch: &Batch,
        mut update: impl FnMut((usize, usize), &[usize]) -> Result<(), E>,
    ) -> Result<(), E> {
        let updates = group_ranges(batch, self.groups_per_update);
        for epoch in 0..self.num_epochs {
            for (update_idx, row_idxs) in updates.iter().enumerate() {
                update((epoch, update_idx), &row_idxs.clone().collect::<Vec<_>>())?;
            }
        }
        Ok(())
    }
}

/// Returns the rows of each update: those of `groups_per_update` consecutive rollout groups of the step.
/// Groups of which no sample is left, because it was masked or not drawn, count too, so that the number of
/// updates does not depend on chance.
fn group_ranges(batch: &Batch, groups_per_update: usize) -> Vec<Range<usize>> {
    let update_of = |group: &usize| group / groups_per_update.max(1);
    let updates = batch.groups.chunk_by(|left, right| update_of(left) == update_of(right));
    let mut end = 0;
    let range = |rows: &[usize]| {
        let start = end;
        end += rows.len();
        start..end
    };
    updates.map(range).collect()
}

#[cfg(test)]
mod tests {
    use rlt_core::batch::Demonstration;

    use super::*;

    #[test]
    fn samples_that_were_drawn_or_masked_are_split_by_their_prompts() {
        let row = Demonstration { tokens: vec![1, 2], loss_mask: vec![false, true], images: Vec::new() };
        let mut batch = Batch::from_demonstrations(&vec![row; 8]);
        batch.groups = vec![0, 0, 1, 1, 2, 2, 3, 3];
        let mini_batches = MiniBatches { groups_per_update: 2, num_epochs: 1, max_tokens: 8 };
        let updates = |batch: &Batch| {
            let mut updates = Vec::new();
            let ended: Result<(), ()> = mini_batches.for_each_update(batch, |_, row_idxs| {
                updates.push(row_idxs.to_vec());
                Ok(())
            });
            ended.unwrap();
            updates
        };
        assert_eq!(updates(&batch), [[0, 1, 2, 3], [4, 5, 6, 7]]);
        let drawn = batch.select(&[0, 0, 1, 5, 5, 5, 6, 7]);
        assert_eq!(drawn.groups, [0, 0, 0, 2, 2, 2, 3, 3]);
        assert_eq!(updates(&drawn), [vec![0, 1, 2], vec![3, 4, 5, 6, 7]]);
        let only_last = batch.select(&[6, 7]);
        assert!(mini_batches.is_one_update(&only_last) && !mini_batches.is_one_update(&drawn));
    }
}
