//! Admission of waiting sequences: they get blocks and prefills of the tokens that are not in the cache, or
//! share the blocks of a prompt that is prefilled already.

use super::{BlockCopy, Prefill, Scheduler, Step, WATERMARK_DIVISOR};
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
        while self.running.len() < self.config.max_num_seqs && !self.waiting.is_empty() {
            if !self.has_headroom() {
                if self.give_up_idle_blocks() {
                    continue;
                }
                return;
            }
            let Some(sequence) = self.waiting.pop_front() else { return };
            let Err(refused) = self.try_admit(sequence, step, Prefix::KeptForSiblings) else { continue };
            if self.running.is_empty() {
                let Err(refused) = self.admit_alone(refused, step) else { continue };
                return self.waiting.push_front(refused);
            }
            let lacks_blocks = self.fits_budget(&refused, step);
            self.waiting.push_front(refused);
            if !(lacks_blocks && self.give_up_idle_blocks()) {
                return;
            }
        }
    }

    /// Admits a sequence while none runs. Then only prefixes and sequences that do not run can hold blocks;
    /// once these are freed, any one sequence fits.
    fn admit_alone(&mut self, mut sequence: Sequence, step: &mut Step) -> Result<(), Sequence> {
        self.drop_idle_prefixes();
        loop {
            let Err(refused) = self.try_admit(sequence, step, Prefix::Unshared) else { return Ok(()) };
            if !self.give_up_blocks() {
                return Err(refused);
            }
            sequence = refused;
        }
    }

    /// Whether a sequence may be admitted. While other sequences run some blocks must stay free, so that the
    /// new sequence is not preempted at once.
    fn has_headroom(&self) -> bool {
        self.running.is_empty() || self.pool.num_free() > self.pool.num_blocks() / WATERMARK_DIVISOR
    }

    /// Moves a sequence to the running ones, or returns it unchanged if blocks or the token budget do not
    /// suffice.
    fn try_admit(&mut self, mut sequence: Sequence, step: &mut Step, keep: Prefix) -> Result<(), Sequence> {
        let request_idx = sequence.request_idx;
        let num_own_blocks = sequence.block_table.len();
        // A sequence that has run continues from its own blocks, if it has kept them, and not from the prompt
        // of its request.
        let group = self.groups.get_mut(&request_idx).filter(|_| !sequence.has_run);
        let siblings_wait = group.as_ref().is_some_and(|group| group.num_unforked > 1);
        let prefix = group.and_then(|group| group.prefix.take());
        let is_computed = prefix.is_some();
        let Some(blocks) = prefix.or_else(|| self.allocate_missing(&sequence, step)) else {
            return Err(sequence);
        };
        sequence.block_table.extend(blocks);
        let is_kept = siblings_wait && keep == Prefix::KeptForSiblings;
        let for_siblings = is_kept.then(|| sequence.block_table.clone());
        let pieces = if is_computed { Vec::new() } else { self.pieces_of(&sequence) };
        if !reserve_last_slot(&self.pool, &mut sequence, self.config.block_size, step) {
            let blocks = sequence.block_table.split_off(num_own_blocks);
            if let Some(group) = self.groups.get_mut(&request_idx).filter(|_| is_computed) {
                group.prefix = Some(blocks);
            }
            return Err(sequence);
        }
        if !sequence.has_run {
            self.count_fork(request_idx, for_siblings);
        }
        self.stats.prefilled_tokens += pieces.iter().map(|piece| piece.tokens.len()).sum::<usize>();
        step.prefills.extend(pieces);
        self.num_admissions += 1;
        (sequence.has_run, sequence.admission) = (true, self.num_admissions);
        self.running.push(sequence);
        Ok(())
    }

    /// Records that one more sample of a request no longer needs its prompt; `prefix` is kept for the
    /// remaining samples.
    pub(super) fn count_fork(&mut self, request_idx: usize, prefix: Option<Vec<Block>>) {
        let Some(group) = self.groups.get_mut(&request_idx) else { return };
        group.num_unforked -= 1;
        group.prefix = prefix;
        if group.num_unforked == 0 {
            self.groups.remove(&request_idx);
        }
    }

    /// Whether the prefill of a sequence fits into the step's token budget.
    fn fits_budget(&self, sequence: &Sequence, step: &Step) -> bool {
        let num_tokens = sequence.last_position() - sequence.num_cached;
        let planned: usize = step.prefills.iter().map(|prefill| prefill.tokens.len()).sum();
        planned == 0 || planned + num_tokens <= self.config.max_num_batched_tokens
    }

    /// Allocates the blocks that a sequence lacks for every token but the last; `None` if the step's token
    /// budget or the free blocks do not suffice.
    fn allocate_missing(&self, sequence: &Sequence, step: &Step) -> Option<Vec<Block>> {
        let num_blocks = sequence.last_position().div_ceil(self.config.block_size);
        let num_missing = num_blocks.saturating_sub(sequence.block_table.len());
        self.fits_budget(sequence, step).then(|| self.pool.allocate_many(num_missing))?
    }

    /// Splits all tokens but the last that are not in the cache into prefill chunks of the token budget.
    fn pieces_of(&self, sequence: &Sequence) -> Vec<Prefill> {
        let (block_size, budget) = (self.config.block_size, self.config.max_num_batched_tokens);
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
        (sequence.num_cached..num_tokens).step_by(budget).map(piece).collect()
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
