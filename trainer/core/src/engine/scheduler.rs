//! First come, first served continuous batching over a pool of cache blocks.
//!
//! Each step first reserves a slot for the next token of every running sequence, preempting the youngest if
//! blocks run out, and then admits waiting sequences. The samples of a request fork from one prefilled
//! prompt: its full blocks stay shared, and the partial last block is copied on the first write. Blocks of
//! sequences that do not run are given up before a running sequence is preempted.

mod admission;
mod ahead;
mod commands;

use std::collections::{BTreeMap, VecDeque};

use super::{Block, BlockPool, Sequence, SequenceId, SequenceRequest};
use crate::types::TokenId;
use admission::reserve_last_slot;
pub use ahead::PendingToken;

/// One hundredth of the blocks is withheld from new sequences, as by vLLM's watermark.
const WATERMARK_DIVISOR: usize = 100;

/// Limits of the scheduler, by vLLM's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulerConfig {
    /// Number of blocks in the cache.
    pub num_blocks: u32,
    /// Block size, in tokens.
    pub block_size: usize,
    /// Largest number of sequences that decode together.
    pub max_num_seqs: usize,
    /// Largest number of tokens in one prefill pass. A longer prompt has a step of its own, in which it is
    /// prefilled in chunks of this size.
    pub max_num_batched_tokens: usize,
}

/// A request or limit that the scheduler rejects.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SchedulerError {
    /// The prompt is empty, so there is nothing to continue.
    #[error("prompt of request {request_idx} is empty; a rollout needs at least one prompt token")]
    EmptyPrompt {
        /// Index of the request.
        request_idx: usize,
    },
    /// The request asks for no new tokens.
    #[error("request {request_idx} asks for 0 new tokens; at least 1 is needed")]
    NoNewTokens {
        /// Index of the request.
        request_idx: usize,
    },
    /// A sample of the request needs more blocks than the cache has.
    #[error("request {request_idx} needs {needed} cache blocks at its longest, the cache has {num_blocks}")]
    TooLong {
        /// Index of the request.
        request_idx: usize,
        /// Number of blocks of the request's longest possible sample.
        needed: usize,
        /// Number of blocks in the cache.
        num_blocks: usize,
    },
    /// The sequence does not exist: it was never added, or has ended or been cancelled.
    #[error("{id} does not exist, or has ended")]
    UnknownSequence {
        /// Id of the sequence.
        id: SequenceId,
    },
    /// A launched step samples a token of the sequence, which has to be committed first.
    #[error("{id} has a token in flight")]
    InFlight {
        /// Id of the sequence.
        id: SequenceId,
    },
    /// The sequence is still generating or is paused, so it cannot be extended.
    #[error("{id} has not ended; only a sequence that has ended and is kept open can be extended")]
    TurnNotOver {
        /// Id of the sequence.
        id: SequenceId,
    },
    /// The sequence has ended and can only be extended, not resumed.
    #[error("{id} has ended; it continues when it is extended")]
    TurnOver {
        /// Id of the sequence.
        id: SequenceId,
    },
    /// A limit is zero, so nothing could run.
    #[error("rollout limit {name} is 0, must be at least 1")]
    ZeroLimit {
        /// Name of the limit.
        name: &'static str,
    },
}

impl SchedulerError {
    /// Index of the rejected request; `None` for [`Self::ZeroLimit`].
    pub fn request_idx(&self) -> Option<usize> {
        match *self {
            Self::EmptyPrompt { request_idx }
            | Self::NoNewTokens { request_idx }
            | Self::TooLong { request_idx, .. } => Some(request_idx),
            Self::UnknownSequence { id }
            | Self::InFlight { id }
            | Self::TurnNotOver { id }
            | Self::TurnOver { id } => Some(id.request_idx),
            Self::ZeroLimit { .. } => None,
        }
    }
}

/// A chunk of prompt tokens whose keys and values are computed and stored; nothing is sampled from it.
///
/// The chunks of a prompt depend on its length and the token budget alone, never on the batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefill {
    /// Index of the request whose prompt it is.
    pub request_idx: usize,
    /// Position of the first token. The keys and values of all earlier positions are in the cache.
    pub first_position: usize,
    /// The tokens, at positions `first_position`, `first_position + 1`, ...
    pub tokens: Vec<TokenId>,
    /// Cache slot of each token.
    pub slots: Vec<usize>,
    /// Indices of the blocks that hold all positions up to the last token's.
    pub block_table: Vec<u32>,
}

/// A block to be copied before the step's decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCopy {
    /// Index of the block to read.
    pub src: u32,
    /// Index of the block to overwrite; no two copies of a step have the same.
    pub dst: u32,
}

/// The work of one step: the prefills, then the copies, then one decode of [`Scheduler::running`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Prefill chunks, packed into passes of at most `max_num_batched_tokens` tokens
    /// ([`Self::prefill_passes`]).
    pub prefills: Vec<Prefill>,
    /// Block copies of the step. A source must be read before a later copy of the list overwrites it.
    pub copies: Vec<BlockCopy>,
}

impl Step {
    /// Returns the prefills as passes, in order: full prompts are packed together, each chunk that continues
    /// a sequence is alone.
    pub fn prefill_passes(&self) -> impl Iterator<Item = &[Prefill]> {
        self.prefills.chunk_by(|one, next| one.first_position == 0 && next.first_position == 0)
    }
}

/// Counters of the scheduler since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedulerStats {
    /// Number of tokens prefilled, recomputed ones included.
    pub prefilled_tokens: usize,
    /// Number of preemptions: sequences sent back to wait because no block was free.
    pub preemptions: usize,
}

/// The shared prompt of a request's samples that have not run.
#[derive(Debug, Default)]
struct Group {
    num_unforked: usize,
    /// Blocks of all prompt tokens but the last; `Some` from the first fork to the last.
    prefix: Option<Vec<Block>>,
}

/// The continuous-batching scheduler; see the module above for the loop around it.
#[derive(Debug)]
pub struct Scheduler {
    config: SchedulerConfig,
    pool: BlockPool,
    /// Requests with samples that have not run, by index.
    groups: BTreeMap<usize, Group>,
    /// Sequences that have run, then those that have not.
    waiting: VecDeque<Sequence>,
    running: Vec<Sequence>,
    /// Sequences that are paused, or have ended and are kept open, the one that is idle longest first. They
    /// keep their blocks until others need them.
    idle: Vec<Sequence>,
    /// Sequences at their token limit whose last tokens are not committed yet.
    finishing: Vec<Sequence>,
    /// Tokens of the launched steps, oldest step first, in the order of the step's rows; `None` for a
    /// sequence that has ended since.
    pending: VecDeque<Vec<Option<PendingToken>>>,
    num_admissions: u64,
    stats: SchedulerStats,
}

impl Scheduler {
    /// Makes an idle scheduler.
    ///
    /// # Errors
    /// [`SchedulerError::ZeroLimit`] if a limit is 0.
    pub fn new(config: SchedulerConfig) -> Result<Self, SchedulerError> {
        let named = [
            ("num_blocks", config.num_blocks as usize),
            ("block_size", config.block_size),
            ("max_num_seqs", config.max_num_seqs),
            ("max_num_batched_tokens", config.max_num_batched_tokens),
        ];
        if let Some((name, _)) = named.into_iter().find(|(_, value)| *value == 0) {
            return Err(SchedulerError::ZeroLimit { name });
        }
        Ok(Self {
            config,
            pool: BlockPool::new(config.num_blocks),
            groups: BTreeMap::new(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            idle: Vec::new(),
            finishing: Vec::new(),
            pending: VecDeque::new(),
            num_admissions: 0,
            stats: SchedulerStats::default(),
        })
    }

    /// Number of blocks with which no sample of `requests` is ever preempted, whatever its length.
    pub fn blocks_wanted(requests: &[SequenceRequest], block_size: usize, max_num_seqs: usize) -> usize {
        let mut costs: Vec<usize> = Vec::new();
        for request in requests.iter().filter(|request| !request.prompt.is_empty()) {
            let longest = request.max_blocks(block_size);
            let num_shared = (request.prompt.len() - 1) / block_size;
            // The first sample of a request also holds the blocks that all samples share, and one more for
            // the partial last block of the prompt, which is kept for its siblings.
            costs.extend(request.seeds.iter().enumerate().map(|(sample_idx, _)| match sample_idx {
                0 => longest + 1,
                _ => longest - num_shared,
            }));
        }
        costs.sort_unstable_by(|a, b| b.cmp(a));
        let wanted: usize = costs.iter().take(max_num_seqs).sum();
        wanted + wanted / WATERMARK_DIVISOR + 1
    }

    /// Queues every sample of a request. `request_idx` identifies the request and must be unique.
    ///
    /// # Errors
    /// When the prompt is empty, no new token is asked for, or one sample needs more blocks than the cache
    /// has.
    pub fn add(&mut self, request_idx: usize, request: &SequenceRequest) -> Result<(), SchedulerError> {
        if request.prompt.is_empty() {
            return Err(SchedulerError::EmptyPrompt { request_idx });
        }
        if request.max_new_tokens == 0 {
            return Err(SchedulerError::NoNewTokens { request_idx });
        }
        let needed = request.max_blocks(self.config.block_size);
        if needed > self.pool.num_blocks() {
            return Err(SchedulerError::TooLong { request_idx, needed, num_blocks: self.pool.num_blocks() });
        }
        if !request.seeds.is_empty() {
            self.groups.insert(request_idx, Group { num_unforked: request.seeds.len(), prefix: None });
        }
        self.waiting.extend(Sequence::of_request(request_idx, request));
        Ok(())
    }

    /// Plans the next step; afterwards every sequence in [`Self::running`] has a slot for its last token.
    pub fn schedule(&mut self) -> Step {
        let mut step = Step::default();
        let num_preempted = self.stats.preemptions;
        self.make_room_for_running(&mut step);
        // A sequence admitted right after a preemption would take the blocks that were missing.
        if self.stats.preemptions == num_preempted {
            self.admit_waiting(&mut step);
        }
        step
    }

    /// The sequences of the step's decode, oldest first.
    pub fn running(&self) -> &[Sequence] {
        &self.running
    }

    /// Appends the token that each running sequence has sampled, and returns the sequences that have ended:
    /// [`Self::launch`] and [`Self::commit`] of a step whose tokens are known at once.
    pub fn advance(&mut self, sampled: &[(TokenId, bool)]) -> Vec<Sequence> {
        self.launch();
        self.commit(sampled)
    }

    /// Number of sequences that wait for a row: new, resumed, extended or preempted ones.
    pub fn num_waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Number of sequences that are paused, or have ended and are kept open.
    pub fn num_idle(&self) -> usize {
        self.idle.len()
    }

    /// Whether no sequence waits or runs.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// Counters since the scheduler was made.
    pub fn stats(&self) -> SchedulerStats {
        self.stats
    }

    /// Number of free blocks in the cache.
    pub fn num_free_blocks(&self) -> usize {
        self.pool.num_free()
    }

    fn make_room_for_running(&mut self, step: &mut Step) {
        let mut idx = 0;
        while idx < self.running.len() {
            if self.reserve_last_slot_of(idx, step) {
                idx += 1;
            } else if !self.drop_idle_prefixes() && !self.give_up_blocks() {
                self.preempt_youngest();
            }
        }
    }

    fn reserve_last_slot_of(&mut self, running_idx: usize, step: &mut Step) -> bool {
        reserve_last_slot(&self.pool, &mut self.running[running_idx], self.config.block_size, step)
    }

    /// Frees the prefilled prompts kept for waiting samples, which are cheaper to recompute than a sequence.
    /// Returns whether a block became free.
    fn drop_idle_prefixes(&mut self) -> bool {
        let num_free = self.pool.num_free();
        self.groups.values_mut().for_each(|group| group.prefix = None);
        self.pool.num_free() > num_free
    }

    /// Frees the blocks of a sequence that is idle, or will be. Returns whether a block became free.
    fn give_up_idle_blocks(&mut self) -> bool {
        let num_free = self.pool.num_free();
        self.idle.iter_mut().chain(&mut self.finishing).any(|sequence| {
            sequence.free_blocks();
            self.pool.num_free() > num_free
        })
    }

    /// Frees the blocks of a sequence that does not run: of an idle one, or else of the last one in the queue
    /// that has some. Returns whether a block became free.
    fn give_up_blocks(&mut self) -> bool {
        let num_free = self.pool.num_free();
        self.give_up_idle_blocks()
            || self.waiting.iter_mut().rev().any(|sequence| {
                sequence.free_blocks();
                self.pool.num_free() > num_free
            })
    }

    fn preempt_youngest(&mut self) {
        if let Some(mut sequence) = self.running.pop() {
            sequence.free_blocks();
            self.waiting.push_front(sequence);
            self.stats.preemptions += 1;
        }
    }
}

#[cfg(test)]
mod tests;
