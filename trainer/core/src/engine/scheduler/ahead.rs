//! Asynchronous scheduling: a step is planned before the tokens of the previous one are read.
//!
//! ```text
//!   loop { schedule(); launch; advance_unread(); read the tokens of the step before; resolve(tokens) }
//! ```
//! The length of a sequence, and so which blocks and slots it needs, is known without its tokens. Whether it
//! is finished is known one step late; the token that it drew meanwhile is dropped. A block that is freed
//! then may be written once more by the step in flight; another sequence gets it only in a later step.

use std::collections::HashMap;

use super::{Scheduler, Sequence};
use crate::types::TokenId;

/// Placeholder of a token that was drawn and not read yet.
const UNREAD: TokenId = TokenId::MAX;

/// The sample and the position of a token that was drawn and not read yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnreadToken {
    sample: (usize, usize),
    position: usize,
}

impl Scheduler {
    /// Appends a placeholder, which [`Self::resolve`] replaces later, to each running sequence, so that the
    /// next step can be planned. A sequence that reaches its token limit frees its blocks now.
    pub fn advance_unread(&mut self) {
        let mut unread = Vec::with_capacity(self.running.len());
        let mut still_running = Vec::with_capacity(self.running.len());
        for mut sequence in self.running.drain(..) {
            unread.push(UnreadToken { sample: sequence.sample(), position: sequence.tokens.len() });
            let is_longest = sequence.is_at_last_token();
            sequence.tokens.push(UNREAD);
            if is_longest {
                sequence.block_table.clear();
                self.leaving.push(sequence);
            } else {
                still_running.push(sequence);
            }
        }
        self.running = still_running;
        self.unread.push_back(unread);
    }

    /// Whether a step's tokens were drawn and not read yet.
    pub fn has_unread(&self) -> bool {
        !self.unread.is_empty()
    }

    /// Fills in the tokens of the oldest step that is not read, and returns the finished sequences.
    ///
    /// `drawn` holds, in the order of [`Self::running`] in that step, the token and whether it is the
    /// sequence's last. Tokens of sequences that have finished since are dropped.
    pub fn resolve(&mut self, drawn: &[(TokenId, bool)]) -> Vec<Sequence> {
        let unread = self.unread.pop_front().unwrap_or_default();
        debug_assert_eq!(drawn.len(), unread.len());
        let tokens: HashMap<(usize, usize), (usize, (TokenId, bool))> = unread
            .iter()
            .zip(drawn)
            .map(|(unread, drawn)| (unread.sample, (unread.position, *drawn)))
            .collect();
        let mut finished = Vec::new();
        let mut is_unfinished = |sequence: &mut Sequence| {
            let Some(&(position, (token, is_last))) = tokens.get(&sequence.sample()) else { return true };
            sequence.tokens[position] = token;
            if is_last {
                sequence.tokens.truncate(position + 1);
                sequence.block_table.clear();
                finished.push(sequence.clone());
            }
            !is_last
        };
        self.running.retain_mut(&mut is_unfinished);
        self.leaving.retain_mut(&mut is_unfinished);
        // Preempted sequences precede new ones in the queue.
        let num_begun = self.waiting.iter().take_while(|sequence| !sequence.completion().is_empty()).count();
        let preempted: Vec<Sequence> = self.waiting.drain(..num_begun).collect();
        for mut sequence in preempted.into_iter().rev() {
            if is_unfinished(&mut sequence) {
                self.waiting.push_front(sequence);
            }
        }
        finished
    }
}
