//! Commands that change what an engine works on while it runs, and the events that it reports.
//!
//! ```text
//! EngineHandle (any thread) -- Command --> CommandQueue --> Engine::run -- Event --> its caller
//! ```
//! A command is applied between two steps. The sender numbers requests, so it can name a sequence before the
//! engine has seen it, and waits for no answer.
//!
//! An extended sequence keeps its cached blocks. It equals a new prompt of its tokens only up to rounding,
//! because a decode and a prefill add in different orders. All commands of a run see the same weights.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use rlt_core::engine::SequenceId;
use rlt_core::types::{Completion, TokenId};
use serde::{Deserialize, Serialize};

use crate::{EngineError, Request};

/// A change of the sequences that a running engine works on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Command {
    /// Samples a request.
    Add {
        /// Index of the request, which no other request of the run has.
        request_idx: usize,
        /// The request, with a seed for each sample.
        request: Request,
        /// Whether the request's sequences stay after their end, so that they can be extended.
        keep_open: bool,
    },
    /// Begins another turn of a sequence that has ended and is kept open. The turn samples like a new request
    /// whose prompt is all tokens of the sequence, with the seed and parameters of the sequence's own
    /// request.
    Extend {
        /// The sequence that continues.
        id: SequenceId,
        /// Tokens that are appended without being sampled.
        tokens: Vec<TokenId>,
        /// Longest completion of the turn in tokens; the model's context may end it sooner.
        max_new_tokens: usize,
    },
    /// Takes a sequence out of the batch. It keeps its cache blocks until others need them.
    Pause(SequenceId),
    /// Lets a paused sequence continue.
    Resume(SequenceId),
    /// Ends a sequence without a completion, and frees its cache blocks.
    Cancel(SequenceId),
}

impl Command {
    /// Index of the request that the command is about.
    pub fn request_idx(&self) -> usize {
        match self {
            Self::Add { request_idx, .. } => *request_idx,
            Self::Extend { id, .. } | Self::Pause(id) | Self::Resume(id) | Self::Cancel(id) => id.request_idx,
        }
    }
}

/// A report of a running engine.
#[derive(Debug)]
pub enum Event {
    /// A token was sampled.
    Sampled {
        /// The sequence that it continues.
        id: SequenceId,
        /// The token's id.
        token: TokenId,
        /// Log-prob of the token, as in [`Completion::rollout_logprobs`].
        logprob: f32,
    },
    /// A sequence that is kept open has ended a turn.
    TurnOver {
        /// The sequence, which can be extended now.
        id: SequenceId,
        /// Completion of this turn.
        completion: Completion,
    },
    /// A sequence has ended that is not kept open.
    Finished {
        /// The sequence, which no longer exists.
        id: SequenceId,
        /// Completion of the sequence.
        completion: Completion,
    },
    /// A sequence was cancelled.
    Cancelled {
        /// The sequence, which no longer exists.
        id: SequenceId,
    },
    /// A command could not be applied, and has changed nothing.
    Rejected {
        /// Index of the request that the command was about.
        request_idx: usize,
        /// Reason of the rejection.
        error: EngineError,
    },
}

/// Source of an engine's commands.
pub trait CommandSource {
    /// Takes the next command if one has arrived. The engine applies all commands that have arrived before it
    /// schedules a step.
    fn poll(&mut self) -> Option<Command>;

    /// Waits for the next command, because nothing runs; `None` ends the run.
    fn wait(&mut self) -> Option<Command>;

    /// Waits as [`Self::wait`] does, but no longer than `limit`, because other ranks wait for this one. A
    /// source that never waits long may ignore the limit.
    ///
    /// # Errors
    /// [`NoCommandYet`] if no command has arrived in time, and one can still arrive.
    fn wait_at_most(&mut self, _limit: Duration) -> Result<Option<Command>, NoCommandYet> {
        Ok(self.wait())
    }
}

/// No command has come within the limit of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no command has come yet")]
pub struct NoCommandYet;

/// Source without commands, for a run whose requests are all given at its start, and for ranks other than the
/// first of their group.
#[derive(Clone, Copy, Debug)]
pub struct NoCommands;

impl CommandSource for NoCommands {
    fn poll(&mut self) -> Option<Command> {
        None
    }

    fn wait(&mut self) -> Option<Command> {
        None
    }
}

/// Makes a queue of commands, and a handle that fills it. The run of an engine ends when all clones of the
/// handle are dropped and nothing runs.
pub fn command_queue() -> (EngineHandle, CommandQueue) {
    let (sender, receiver) = mpsc::channel();
    (EngineHandle { sender, next_request: Arc::default() }, CommandQueue { receiver })
}

/// Commands of handles, in the order in which they were sent.
#[derive(Debug)]
pub struct CommandQueue {
    receiver: mpsc::Receiver<Command>,
}

impl CommandSource for CommandQueue {
    fn poll(&mut self) -> Option<Command> {
        self.receiver.try_recv().ok()
    }

    fn wait(&mut self) -> Option<Command> {
        self.receiver.recv().ok()
    }

    fn wait_at_most(&mut self, limit: Duration) -> Result<Option<Command>, NoCommandYet> {
        match self.receiver.recv_timeout(limit) {
            Ok(command) => Ok(Some(command)),
            Err(RecvTimeoutError::Timeout) => Err(NoCommandYet),
            Err(RecvTimeoutError::Disconnected) => Ok(None),
        }
    }
}

/// The engine has ended its run, and takes no more commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the run of the engine has ended; it takes no more commands")]
pub struct EngineEnded;

/// Sends commands to an engine that runs on another thread.
#[derive(Clone, Debug)]
pub struct EngineHandle {
    sender: mpsc::Sender<Command>,
    /// Index of the next request, shared by all clones.
    next_request: Arc<AtomicUsize>,
}

impl EngineHandle {
    /// Lets the engine sample a request, and returns the ids of its sequences. With `keep_open`, sequences
    /// that have ended are kept, so that they can be extended.
    ///
    /// # Errors
    /// [`EngineEnded`] if the run has ended, as for all commands.
    pub fn add(&self, request: Request, keep_open: bool) -> Result<Vec<SequenceId>, EngineEnded> {
        let request_idx = self.next_request.fetch_add(1, Ordering::Relaxed);
        let num_samples = request.seeds.len();
        self.send(Command::Add { request_idx, request, keep_open })?;
        Ok((0..num_samples).map(|sample_idx| SequenceId { request_idx, sample_idx }).collect())
    }

    /// Begins another turn of a sequence that has ended and is kept open, as [`Command::Extend`] does.
    ///
    /// # Errors
    /// [`EngineEnded`] if the run has ended.
    pub fn extend(
        &self,
        id: SequenceId,
        tokens: Vec<TokenId>,
        max_new_tokens: usize,
    ) -> Result<(), EngineEnded> {
        self.send(Command::Extend { id, tokens, max_new_tokens })
    }

    /// Takes a sequence out of the batch, as [`Command::Pause`] does.
    ///
    /// # Errors
    /// [`EngineEnded`] if the run has ended.
    pub fn pause(&self, id: SequenceId) -> Result<(), EngineEnded> {
        self.send(Command::Pause(id))
    }

    /// Lets a paused sequence continue, as [`Command::Resume`] does.
    ///
    /// # Errors
    /// [`EngineEnded`] if the run has ended.
    pub fn resume(&self, id: SequenceId) -> Result<(), EngineEnded> {
        self.send(Command::Resume(id))
    }

    /// Ends a sequence without a completion, as [`Command::Cancel`] does.
    ///
    /// # Errors
    /// [`EngineEnded`] if the run has ended.
    pub fn cancel(&self, id: SequenceId) -> Result<(), EngineEnded> {
        self.send(Command::Cancel(id))
    }

    fn send(&self, command: Command) -> Result<(), EngineEnded> {
        self.sender.send(command).map_err(|_| EngineEnded)
    }
}
