//! Scheduling of the paged rollout engine: which sequence runs when, and which blocks hold its keys and
//! values.
//!
//! ```text
//!   add(request) -> waiting --admit--> running --finish--> back to the caller
//!                   ^  ^                  |  |
//!                   |  +----- preempt ----+  |       (out of blocks: recomputed later)
//!                   +---- resume, extend --- idle    (paused, or ended and kept open)
//!
//!   loop { schedule() -> Step; run its prefills, copies and decode of running(); launch(); commit(tokens) }
//! ```
//! The four central types have vLLM's names: [`Block`] and [`BlockPool`], [`Sequence`], [`Scheduler`]. A
//! running sequence always has the keys and values of every token **but its last** in the cache; a decode
//! writes the last token's and yields the logits of the next one. So a prefill never samples, a group's
//! prompt is prefilled once for any number of samples, and a preempted sequence resumes by the same two
//! operations as a new one.
//!
//! Invariants, each checked by a property test over random loads:
//! 1. a block is either free or allocated, and every block is free again when all sequences have finished;
//! 2. no slot is written while two sequences share it (copy on write);
//! 3. each row of a decode attends to exactly its own tokens;
//! 4. the oldest running sequence is never preempted, so every request finishes.
//!
//! A sequence that is kept open is idle when it has ended, and can be extended by tokens that were not
//! sampled: a turn of a dialogue, the result of a tool. It then uses its cached blocks again. Idle sequences
//! keep their blocks until others need them.
//!
//! On a device, the next step is planned before the tokens of the previous one are read
//! ([`Scheduler::launch`]); a sequence found to be finished then drops the token that it sampled meanwhile.
//!
//! This module has no tensors, probabilities or clock.

mod block_pool;
mod scheduler;
mod sequence;
mod text;

pub use block_pool::{Block, BlockPool};
pub use scheduler::{
    BlockCopy, PendingToken, Prefill, Scheduler, SchedulerConfig, SchedulerError, SchedulerStats, Step,
};
pub use sequence::{Sequence, SequenceId, SequenceRequest};
pub use text::{DetokenizeError, Detokenizer, IncrementalText};
