//! Launched steps: a step is planned before the tokens of the previous one are read.
//!
//! ```text
//!   loop { schedule(); launch(); start the step; read the oldest launched step; commit(its tokens) }
//! ```
//! The length of a sequence, and so which blocks and slots it needs, is known without its tokens. Whether it
//! is finished is known one step late; the token that it sampled meanwhile is dropped. A block that is freed
//! then may be written once more by the step in flight; another sequence gets it only in a later step.

use std::collections::{BTreeMap, HashMap};

use super::{Scheduler, Sequence};
use crate::engine::SequenceId;
use crate::types::TokenId;

/// Placeholder of a token that a launched step samples.
pub(super) const PENDING: TokenId = TokenId::MAX;

/// A token that a launched step samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingToken {
    /// Sequence to which the token is appended.
    pub id: SequenceId,
    /// Whether the token brings the sequence to its token limit.
    pub is_longest: bool,
    /// Index of the token in the sequence.
    position: usize,
}

/// A token that was sampled in a row of a step.
struct SampledRow {
    row: usize,
    position: usize,
    token: TokenId,
    is_last: bool,
}

impl Scheduler {
    /// Appends a placeholder, which [`Self::commit`] replaces later, to each running sequence, so that the
    /// next step can be planned. A sequence that reaches its token limit frees its blocks now, unless it is
    /// kept open.
    pub fn launch(&mut self) {
        let mut launched = Vec::with_capacity(self.running.len());
        let mut still_running = Vec::with_capacity(self.running.len());
        for mut sequence in self.running.drain(..) {
            let is_longest = sequence.is_at_last_token();
            let (id, position) = (sequence.id(), sequence.tokens.len());
            launched.push(Some(PendingToken { id, is_longest, position }));
            sequence.tokens.push(PENDING);
            if is_longest {
                if sequence.keep_open {
                    sequence.leave_row();
                } else {
                    sequence.free_blocks();
                }
                self.finishing.push(sequence);
            } else {
                still_running.push(sequence);
            }
        }
        self.running = still_running;
        self.pending.push_back(launched);
    }

    /// Number of launched steps whose tokens are not committed yet.
    pub fn num_in_flight(&self) -> usize {
        self.pending.len()
    }

    /// Whether a launched step samples a token of the sequence.
    pub fn is_in_flight(&self, id: SequenceId) -> bool {
        self.pending.iter().flatten().flatten().any(|pending| pending.id == id)
    }

    /// Tokens of the oldest launched step, in the order in which [`Self::running`] was then; `None` for a
    /// sequence that has ended since.
    pub fn oldest_launched(&self) -> &[Option<PendingToken>] {
        self.pending.front().map_or(&[][..], Vec::as_slice)
    }

    /// Fills in the tokens of the oldest launched step, and returns the sequences that have ended, in the
    /// order of the step's rows. Frees the blocks of these sequences, except of those that are kept open:
    /// these become idle, and the returned sequences are copies.
    ///
    /// `sampled` holds, in the order of [`Self::oldest_launched`], the token and whether it is the sequence's
    /// last. Tokens of sequences that have ended since are dropped.
    pub fn commit(&mut self, sampled: &[(TokenId, bool)]) -> Vec<Sequence> {
        let launched = self.pending.pop_front().unwrap_or_default();
        debug_assert_eq!(sampled.len(), launched.len());
        let rows = launched.into_iter().zip(sampled).enumerate();
        let mut tokens: HashMap<SequenceId, SampledRow> = rows
            .filter_map(|(row, (pending, &(token, is_last)))| {
                let PendingToken { id, position, .. } = pending?;
                Some((id, SampledRow { row, position, token, is_last }))
            })
            .collect();
        let mut ended = BTreeMap::new();
        take_ended(&mut self.running, &mut tokens, &mut ended);
        take_ended(&mut self.finishing, &mut tokens, &mut ended);
        if !tokens.is_empty() {
            // Sequences that were preempted after the step was launched.
            take_ended(&mut self.waiting, &mut tokens, &mut ended);
        }
        ended.into_values().map(|sequence| self.end(sequence)).collect()
    }

    /// Ends a sequence: drops its tokens in later steps, and frees its blocks or makes it idle.
    fn end(&mut self, mut sequence: Sequence) -> Sequence {
        self.forget_pending(sequence.id());
        if !sequence.keep_open {
            sequence.free_blocks();
            return sequence;
        }
        sequence.is_turn_over = true;
        sequence.leave_row();
        let block_table = std::mem::take(&mut sequence.block_table);
        let ended = sequence.clone();
        self.idle.push(Sequence { block_table, ..sequence });
        ended
    }

    /// Drops the tokens of a sequence in all launched steps.
    pub(super) fn forget_pending(&mut self, id: SequenceId) {
        for pending in self.pending.iter_mut().flatten() {
            if pending.is_some_and(|pending| pending.id == id) {
                *pending = None;
            }
        }
    }
}

/// Fills in the tokens of `sequences` and removes them from `tokens`. Sequences that have ended are moved to
/// `ended`, ordered by row.
fn take_ended<C>(
    sequences: &mut C,
    tokens: &mut HashMap<SequenceId, SampledRow>,
    ended: &mut BTreeMap<usize, Sequence>,
) where
    C: Default + IntoIterator<Item = Sequence> + FromIterator<Sequence>,
{
    let keep = |mut sequence: Sequence| {
        let Some(sampled) = tokens.remove(&sequence.id()) else { return Some(sequence) };
        sequence.tokens[sampled.position] = sampled.token;
        if !sampled.is_last {
            return Some(sequence);
        }
        sequence.tokens.truncate(sampled.position + 1);
        ended.insert(sampled.row, sequence);
        None
    };
    *sequences = std::mem::take(sequences).into_iter().filter_map(keep).collect();
}
