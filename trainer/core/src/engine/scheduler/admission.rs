//! Admission of waiting sequences: they get blocks and prefills of their tokens, or share the blocks of a
//! prompt that is prefilled already.

use super::{BlockCopy, Group, Prefill, Scheduler, Step, WATERMARK_DIVISOR};
use crate::engine::sequence::slot;
use crate::engine::{Block, BlockPool, Sequence};

/// Whether the blocks of a prefilled prompt are kept for waiting samples of the same request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Prefix {
    KeptForSiblings,
    Unshared,
}

impl Scheduler {
    pub(super) fn admit_waiting(&mut self, step: &mut Step) {
        while self.running.len() < self.limits.max_concurrent && self.has_headroom() {
            let Some(sequence) = self.waiting.pop_front() else { return };
            let Err(refused) = self.try_admit(sequence, step, Prefix::KeptForSiblings) else { continue };
            if !self.running.is_empty() {
                return self.waiting.push_front(refused);
            }
            // Nothing runs, so only prefixes can hold blocks: without them any one sequence fits.
            self.drop_idle_prefixes();
            if let Err(refused) = self.try_admit(refused, step, Prefix::Unshared) {
                return self.waiting.push_front(refused);
            }
        }
    }

    /// Whether a sequence may be admitted. Some blocks stay free while others run, so that it is not
    /// preempted at once.
    fn has_headroom(&self) -> bool {
        self.running.is_empty() || self.pool.num_free() > self.pool.num_blocks() / WATERMARK_DIVISOR
    }

    /// Moves a sequence to the running ones, or returns it unchanged if blocks or the token budget do not
    /// suffice.
    fn try_admit(&mut self, mut sequence: Sequence, step: &mut Step, keep: Prefix) -> Result<(), Sequence> {
        let group_idx = sequence.request_idx;
        // A preempted sequence has generated tokens, so it is recomputed in full.
        let is_fork = sequence.completion().is_empty();
        let kept = if is_fork { self.groups[group_idx].prefix.take() } else { None };
        let is_computed = kept.is_some();
        let Some(prefix) = kept.or_else(|| self.allocate_prefix(&sequence, step)) else {
            return Err(sequence);
        };
        let siblings_wait = is_fork && self.groups[group_idx].num_unforked > 1;
        let for_siblings = (siblings_wait && keep == Prefix::KeptForSiblings).then(|| prefix.clone());
        sequence.block_table = prefix;
        let pieces = if is_computed { Vec::new() } else { self.pieces_of(&sequence) };
        if !reserve_last_slot(&self.pool, &mut sequence, self.limits.block_size, step) {
            let prefix = std::mem::take(&mut sequence.block_table);
            if is_computed {
                self.groups[group_idx].prefix = Some(prefix);
            }
            return Err(sequence);
        }
        if is_fork {
            self.groups[group_idx] =
                Group { num_unforked: self.groups[group_idx].num_unforked - 1, prefix: for_siblings };
        }
        self.stats.prefilled_tokens += pieces.iter().map(|piece| piece.tokens.len()).sum::<usize>();
        step.prefills.extend(pieces);
        self.running.push(sequence);
        Ok(())
    }

    /// Allocates blocks for every token but the last; `None` if the step's token budget or the free blocks do
    /// not suffice.
    fn allocate_prefix(&self, sequence: &Sequence, step: &Step) -> Option<Vec<Block>> {
        let num_tokens = sequence.last_position();
        let planned: usize = step.prefills.iter().map(|prefill| prefill.tokens.len()).sum();
        let fits_budget = planned == 0 || planned + num_tokens <= self.limits.max_prefill_tokens;
        fits_budget.then(|| self.pool.allocate_many(num_tokens.div_ceil(self.limits.block_size)))?
    }

    /// Splits all tokens but the last into prefill chunks of the token budget.
    fn pieces_of(&self, sequence: &Sequence) -> Vec<Prefill> {
        let (block_size, budget) = (self.limits.block_size, self.limits.max_prefill_tokens);
        let num_tokens = sequence.last_position();
        let piece = |first: usize| {
            let end = num_tokens.min(first.saturating_add(budget));
            let blocks = &sequence.block_table[..end.div_ceil(block_size)];
            Prefill {
                request_idx: sequence.request_idx,
                first_position: first,
                tokens: sequence.tokens[first..end].to_vec(),
                slots: (first..end).map(|position| slot(blocks, position, block_size)).collect(),
                block_table: blocks.iter().map(Block::idx).collect(),
            }
        };
        (0..num_tokens).step_by(budget).map(piece).collect()
    }
}

/// Reserves a slot in an unshared block for the last token. Returns false, with nothing changed, if no block
/// is free.
pub(super) fn reserve_last_slot(
    pool: &BlockPool,
    sequence: &mut Sequence,
    block_size: usize,
    step: &mut Step,
) -> bool {
    let block_idx = sequence.last_position() / block_size;
    let is_new = block_idx == sequence.block_table.len();
    if !is_new && !sequence.block_table[block_idx].is_shared() {
        return true;
    }
    let Some(block) = pool.allocate() else { return false };
    if is_new {
        sequence.block_table.push(block);
    } else {
        step.copies.push(BlockCopy { src: sequence.block_table[block_idx].idx(), dst: block.idx() });
        sequence.block_table[block_idx] = block;
    }
    true
}
