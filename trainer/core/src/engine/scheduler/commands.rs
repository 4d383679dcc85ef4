//! Commands to single sequences: extend, pause, resume and cancel, each between two steps.
//!
//! ```text
//!   running or waiting --pause--> idle --resume--> waiting
//!   running --its turn ends, kept open--> idle --extend--> waiting
//! ```
//! An idle sequence has no row in the batch. It continues from its blocks when it runs again; if other
//! sequences have needed them meanwhile, its keys and values are recomputed.

use super::ahead::PENDING;
use super::{Scheduler, SchedulerError};
use crate::engine::sequence::blocks_at_longest;
use crate::engine::{Sequence, SequenceId};
use crate::types::TokenId;

impl Scheduler {
    /// Begins another turn of a sequence that has ended and is kept open: appends `tokens`, which were not
    /// sampled, and lets it sample `max_new_tokens` more. It then samples what a new request with all its
    /// tokens as the prompt samples.
    ///
    /// # Errors
    /// When the sequence has not ended, no new token is asked for, or it needs more blocks than the cache
    /// has. The sequence is then as before.
    pub fn extend(
        &mut self,
        id: SequenceId,
        tokens: &[TokenId],
        max_new_tokens: usize,
    ) -> Result<(), SchedulerError> {
        let request_idx = id.request_idx;
        let Some(idle_idx) = self.idle.iter().position(|idle| idle.id() == id && idle.is_turn_over) else {
            let exists = self.find(id).is_some();
            let (unknown, not_over) =
                (SchedulerError::UnknownSequence { id }, SchedulerError::TurnNotOver { id });
            return Err(if exists { not_over } else { unknown });
        };
        if max_new_tokens == 0 {
            return Err(SchedulerError::NoNewTokens { request_idx });
        }
        let num_tokens = self.idle[idle_idx].tokens.len() + tokens.len();
        let needed = blocks_at_longest(num_tokens, max_new_tokens, self.config.block_size);
        if needed > self.pool.num_blocks() {
            return Err(SchedulerError::TooLong { request_idx, needed, num_blocks: self.pool.num_blocks() });
        }
        let mut sequence = self.idle.remove(idle_idx);
        sequence.tokens.extend(tokens);
        sequence.prompt_len = sequence.tokens.len();
        sequence.max_new_tokens = max_new_tokens;
        sequence.is_turn_over = false;
        self.requeue(sequence);
        Ok(())
    }

    /// Takes a sequence out of the batch or the queue until it is resumed. Pausing one that is idle does
    /// nothing.
    ///
    /// # Errors
    /// When the sequence does not exist, or a launched step samples one of its tokens.
    pub fn pause(&mut self, id: SequenceId) -> Result<(), SchedulerError> {
        if self.is_in_flight(id) {
            return Err(SchedulerError::InFlight { id });
        }
        if self.idle.iter().any(|idle| idle.id() == id) {
            return Ok(());
        }
        let is_running = self.running.iter().any(|running| running.id() == id);
        let mut sequence = self.take(id).ok_or(SchedulerError::UnknownSequence { id })?;
        if is_running {
            sequence.leave_row();
        }
        self.idle.push(sequence);
        Ok(())
    }

    /// Queues a paused sequence again, before those that have not run. Resuming one that runs or waits does
    /// nothing.
    ///
    /// # Errors
    /// When the sequence does not exist, or has ended and has to be extended.
    pub fn resume(&mut self, id: SequenceId) -> Result<(), SchedulerError> {
        let Some(idle_idx) = self.idle.iter().position(|idle| idle.id() == id) else {
            let exists = self.find(id).is_some();
            return if exists { Ok(()) } else { Err(SchedulerError::UnknownSequence { id }) };
        };
        if self.idle[idle_idx].is_turn_over {
            return Err(SchedulerError::TurnOver { id });
        }
        let sequence = self.idle.remove(idle_idx);
        self.requeue(sequence);
        Ok(())
    }

    /// Removes a sequence in whatever state it is, and frees its blocks. Tokens that launched steps sample
    /// for it are dropped. Returns `None` if it does not exist.
    pub fn cancel(&mut self, id: SequenceId) -> Option<Sequence> {
        let mut sequence = self.take(id)?;
        self.forget_pending(id);
        if !sequence.has_run {
            let prefix = self.groups.get_mut(&id.request_idx).and_then(|group| group.prefix.take());
            self.count_fork(id.request_idx, prefix);
        }
        sequence.free_blocks();
        let num_known = sequence.tokens.iter().take_while(|token| **token != PENDING).count();
        sequence.tokens.truncate(num_known);
        Some(sequence)
    }

    /// Returns a sequence that has not ended, or is kept open.
    pub fn find(&self, id: SequenceId) -> Option<&Sequence> {
        let mut sequences = self.running.iter().chain(&self.finishing).chain(&self.waiting).chain(&self.idle);
        sequences.find(|sequence| sequence.id() == id)
    }

    /// Removes a sequence from the list that it is in.
    fn take(&mut self, id: SequenceId) -> Option<Sequence> {
        for sequences in [&mut self.running, &mut self.finishing, &mut self.idle] {
            if let Some(idx) = sequences.iter().position(|sequence| sequence.id() == id) {
                return Some(sequences.remove(idx));
            }
        }
        let idx = self.waiting.iter().position(|sequence| sequence.id() == id)?;
        self.waiting.remove(idx)
    }

    /// Queues a sequence before those that have not run.
    fn requeue(&mut self, sequence: Sequence) {
        let idx = self.waiting.iter().take_while(|waiting| waiting.has_run).count();
        self.waiting.insert(idx, sequence);
    }
}
