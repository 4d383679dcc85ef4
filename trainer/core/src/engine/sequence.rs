//! A sequence: the tokens of one sample and the blocks that hold their keys and values.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Block;
use crate::types::TokenId;

/// A request to the scheduler: a prompt, with one seed per sample.
#[derive(Clone, Debug)]
pub struct SequenceRequest {
    /// Prompt tokens, at least one.
    pub prompt: Arc<[TokenId]>,
    /// Sampling seed of each sample.
    pub seeds: Vec<u64>,
    /// Longest completion, in tokens, at least one.
    pub max_new_tokens: usize,
    /// Whether the scheduler keeps the sequences after they have ended, so that they can be extended.
    pub keep_open: bool,
}

impl SequenceRequest {
    /// Number of cache blocks that one sample holds at its longest. Its last token is never fed back and has
    /// no slot.
    pub fn max_blocks(&self, block_size: usize) -> usize {
        blocks_at_longest(self.prompt.len(), self.max_new_tokens, block_size)
    }
}

/// Number of cache blocks of a sequence of `num_tokens` tokens that samples `max_new_tokens` more.
pub(super) fn blocks_at_longest(num_tokens: usize, max_new_tokens: usize, block_size: usize) -> usize {
    (num_tokens + max_new_tokens).saturating_sub(1).div_ceil(block_size)
}

/// Id of a sequence: its request, and its index among the samples of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SequenceId {
    /// Index by which the request was added.
    pub request_idx: usize,
    /// Index among the samples of the request.
    pub sample_idx: usize,
}

impl fmt::Display for SequenceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sample {} of request {}", self.sample_idx, self.request_idx)
    }
}

/// One sample of one request.
#[derive(Clone, Debug)]
pub struct Sequence {
    /// Index by which the request was added.
    pub request_idx: usize,
    /// Index among the samples of the request.
    pub sample_idx: usize,
    /// Seed that determines every draw of this sample, together with the draw's position.
    pub seed: u64,
    pub(super) tokens: Vec<TokenId>,
    pub(super) prompt_len: usize,
    pub(super) max_new_tokens: usize,
    pub(super) block_table: Vec<Block>,
    /// Number of leading tokens whose keys and values are in its blocks, while it does not run.
    pub(super) num_cached: usize,
    /// Whether the sequence has run. Until then it can fork from the prompt of its request.
    pub(super) has_run: bool,
    /// Whether the scheduler keeps the sequence after it has ended, so that it can be extended.
    pub(super) keep_open: bool,
    /// Whether the sequence has ended and can be extended.
    pub(super) is_turn_over: bool,
    pub(super) admission: u64,
}

impl Sequence {
    /// Makes the samples of a request, none of which holds a block yet.
    pub(super) fn of_request(request_idx: usize, request: &SequenceRequest) -> impl Iterator<Item = Self> {
        request.seeds.iter().enumerate().map(move |(sample_idx, &seed)| Self {
            request_idx,
            sample_idx,
            seed,
            tokens: request.prompt.to_vec(),
            prompt_len: request.prompt.len(),
            max_new_tokens: request.max_new_tokens,
            block_table: Vec::new(),
            num_cached: 0,
            has_run: false,
            keep_open: request.keep_open,
            is_turn_over: false,
            admission: 0,
        })
    }

    /// Id of the sequence.
    pub fn id(&self) -> SequenceId {
        SequenceId { request_idx: self.request_idx, sample_idx: self.sample_idx }
    }

    /// Tokens of prompt and completion.
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// Number of the admission by which the sequence runs. A scheduler gives no two admissions the same
    /// number, so state of a row that was written for another admission is not the sequence's.
    pub fn admission(&self) -> u64 {
        self.admission
    }

    /// Whether the sequence has ended and is kept open, to be extended.
    pub fn is_turn_over(&self) -> bool {
        self.is_turn_over
    }

    /// Tokens generated after the prompt, or after the tokens that extended the sequence last.
    pub fn completion(&self) -> &[TokenId] {
        &self.tokens[self.prompt_len..]
    }

    /// The token that the next decode feeds in.
    pub fn last_token(&self) -> TokenId {
        self.tokens[self.tokens.len() - 1]
    }

    /// Position of the last token, which is also the number of tokens already in the cache.
    pub fn last_position(&self) -> usize {
        self.tokens.len() - 1
    }

    /// Whether one more token brings the completion to its token limit.
    pub fn is_at_last_token(&self) -> bool {
        self.completion().len() + 1 >= self.max_new_tokens
    }

    /// Records which tokens are in the cache when the sequence ceases to run: all but the last.
    pub(super) fn leave_row(&mut self) {
        self.num_cached = if self.block_table.is_empty() { 0 } else { self.last_position() };
    }

    /// Frees the blocks; the sequence is computed again when it runs next.
    pub(super) fn free_blocks(&mut self) {
        self.block_table.clear();
        self.num_cached = 0;
    }

    /// Indices of the blocks that hold the sequence, in order of position.
    pub fn block_table(&self) -> impl ExactSizeIterator<Item = u32> + '_ {
        self.block_table.iter().map(Block::idx)
    }

    /// Cache slot of the last token: `block * block_size + offset`.
    pub fn last_slot(&self, block_size: usize) -> usize {
        slot(&self.block_table, self.last_position(), block_size)
    }
}

/// Cache slot of the token at `position`.
pub(super) fn slot(block_table: &[Block], position: usize, block_size: usize) -> usize {
    block_table[position / block_size].idx() as usize * block_size + position % block_size
}
