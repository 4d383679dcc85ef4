//! A sequence: the tokens of one sample and the blocks that hold their keys and values.

use std::sync::Arc;

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
}

impl SequenceRequest {
    /// Number of cache blocks that one sample holds at its longest. Its last token is never fed back and has
    /// no slot.
    pub fn max_blocks(&self, block_size: usize) -> usize {
        (self.prompt.len() + self.max_new_tokens).saturating_sub(1).div_ceil(block_size)
    }
}

/// Name of a sequence: its request, and its index among the samples of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId {
    /// Index of the request, in the order in which requests were added.
    pub request_idx: usize,
    /// Index among the samples of the request.
    pub sample_idx: usize,
}

/// One sample of one request.
#[derive(Clone, Debug)]
pub struct Sequence {
    /// Index of the request, in the order in which requests were added.
    pub request_idx: usize,
    /// Index among the samples of the request.
    pub sample_idx: usize,
    /// Seed that determines every draw of this sample, together with the draw's position.
    pub seed: u64,
    pub(super) tokens: Vec<TokenId>,
    pub(super) prompt_len: usize,
    pub(super) max_new_tokens: usize,
    pub(super) block_table: Vec<Block>,
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
        })
    }

    /// Name of the sequence.
    pub fn id(&self) -> SequenceId {
        SequenceId { request_idx: self.request_idx, sample_idx: self.sample_idx }
    }

    /// Tokens of prompt and completion.
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// Tokens generated after the prompt.
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
