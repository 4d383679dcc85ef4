//! Commands of a run. In a tensor-parallel group those of the first rank reach all ranks before the same
//! step.
//!
//! ```text
//! first rank    poll, or wait while nothing runs --+
//!                                                  broadcast --> all ranks apply them in order
//! other ranks   ----------------------------------+
//! ```
//! If no command has arrived, the message is empty and costs the exchange of one number before each step. If
//! commands were appended to the exchange of tokens, they would take effect one step late on GPUs, where the
//! next step is already launched. While nothing runs, the first rank sends an empty message from time to
//! time: otherwise the other ranks, which wait for it, would take it for lost after the job's timeout.

use std::collections::VecDeque;
use std::time::Duration;

use rlt_parallel::{AxisGroup, RankError};
use serde::{Deserialize, Serialize};

use super::commands::{Command, CommandSource};

/// Maximum time between two messages of the first rank of a group while nothing runs.
const MAX_SILENCE: Duration = Duration::from_secs(1);

/// A message of the first rank to its group.
#[derive(Debug, Deserialize, Serialize)]
enum Message {
    /// The commands that have come since the last message.
    Commands(Vec<Command>),
    /// Nothing runs, and no command can come any more.
    Ended,
}

/// Takes the commands of a run from their source, or from the first rank of the group.
pub(super) struct Inbox<'c> {
    source: &'c mut dyn CommandSource,
    /// This rank's tensor-parallel group; `None` for a rank with all weights.
    group: Option<&'c AxisGroup>,
    /// Commands of the group that this rank has not taken yet.
    received: VecDeque<Command>,
}

impl<'c> Inbox<'c> {
    /// Makes the inbox of a run. In a group only the first rank reads its source.
    pub(super) fn new(source: &'c mut dyn CommandSource, group: Option<&'c AxisGroup>) -> Self {
        Self { source, group, received: VecDeque::new() }
    }

    /// Takes the next command if one has come. Collective.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub(super) fn poll(&mut self) -> Result<Option<Command>, RankError> {
        let Some(group) = self.group else { return Ok(self.source.poll()) };
        if self.received.is_empty() {
            let message = is_first(group).then(|| Message::Commands(self.polled()));
            self.exchange(group, message)?;
        }
        Ok(self.received.pop_front())
    }

    /// Waits for the next command, because nothing runs; `None` ends the run. Collective.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub(super) fn wait(&mut self) -> Result<Option<Command>, RankError> {
        let Some(group) = self.group else { return Ok(self.source.wait()) };
        let mut has_ended = false;
        while self.received.is_empty() && !has_ended {
            let message = is_first(group).then(|| self.waited());
            has_ended = self.exchange(group, message)?;
        }
        Ok(self.received.pop_front())
    }

    /// All commands that have come.
    fn polled(&mut self) -> Vec<Command> {
        std::iter::from_fn(|| self.source.poll()).collect()
    }

    /// The next command, the end of the run, or nothing yet.
    fn waited(&mut self) -> Message {
        match self.source.wait_at_most(MAX_SILENCE) {
            Ok(Some(command)) => Message::Commands(vec![command]),
            Ok(None) => Message::Ended,
            Err(_) => Message::Commands(Vec::new()),
        }
    }

    /// Sends the message of the first rank, which alone has one, and receives it on every rank. Returns
    /// whether the run has ended.
    fn exchange(&mut self, group: &AxisGroup, message: Option<Message>) -> Result<bool, RankError> {
        let sent = message.as_ref().map(encoded).transpose()?.unwrap_or_default();
        match decoded(&group.broadcast_bytes(&sent)?)? {
            Message::Commands(commands) => {
                self.received.extend(commands);
                Ok(false)
            }
            Message::Ended => Ok(true),
        }
    }
}

/// Whether this rank is the one that takes the commands of its group.
fn is_first(group: &AxisGroup) -> bool {
    group.place().index == 0
}

/// Bytes of a message; none for a message without commands.
fn encoded(message: &Message) -> Result<Vec<u8>, RankError> {
    match message {
        Message::Commands(commands) if commands.is_empty() => Ok(Vec::new()),
        message => serde_json::to_vec(message).map_err(RankError::Encode),
    }
}

fn decoded(bytes: &[u8]) -> Result<Message, RankError> {
    if bytes.is_empty() {
        return Ok(Message::Commands(Vec::new()));
    }
    serde_json::from_slice(bytes).map_err(RankError::Decode)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rlt_core::engine::SequenceId;
    use rlt_core::images::{ImageGrid, PromptImage};
    use rlt_core::sampling::SamplingParams;

    use super::*;
    use crate::Request;

    /// Makes a request with values that some formats cannot represent, such as NaN.
    fn odd() -> Request {
        let sampling = SamplingParams {
            temperature: f64::INFINITY,
            top_k: Some(usize::MAX),
            top_p: 0.1 + 0.2,
            min_p: f64::NAN,
            repetition_penalty: -0.0,
            stop_token_ids: vec![0, u32::MAX],
            stop: vec!["\"\u{0}\n\u{1F600}".into()],
            ignore_eos: true,
        };
        let grid = ImageGrid { frames: 1, rows: 1, columns: 2 };
        let patches = vec![f32::MIN_POSITIVE, 0.1, -1.0 / 3.0, f32::MAX];
        Request {
            prompt: [1, 2, u32::MAX].into(),
            images: vec![Arc::new(PromptImage { digest: u64::MAX, grid, patches })],
            seeds: vec![0, u64::MAX],
            sampling,
            max_new_tokens: usize::MAX,
        }
    }

    #[test]
    fn a_message_has_the_commands_to_the_bit() {
        let id = SequenceId { request_idx: 3, sample_idx: 1 };
        let commands = vec![
            Command::Add { request_idx: 3, request: odd(), keep_open: true },
            Command::Extend { id, tokens: vec![7, 9], max_new_tokens: 5 },
            Command::Pause(id),
            Command::Resume(id),
            Command::Cancel(id),
        ];
        for message in [Message::Commands(commands), Message::Commands(Vec::new()), Message::Ended] {
            let received = decoded(&encoded(&message).unwrap()).unwrap();
            assert_eq!(format!("{received:?}"), format!("{message:?}"));
        }
        assert!(matches!(decoded(b"{\"Commands\":[{}]}"), Err(RankError::Decode(_))));
    }
}
