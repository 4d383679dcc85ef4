//! Application of commands between two steps.

use rlt_core::engine::{SchedulerError, SequenceId};
use rlt_core::types::TokenId;

use super::RunLoop;
use crate::engine::commands::{Command, Event};
use crate::{EngineError, Request};

impl RunLoop<'_, '_, '_> {
    /// Applies a command, or reports why it cannot be applied.
    ///
    /// # Errors
    /// The error of a step that has to be read first.
    pub(super) fn apply(&mut self, command: Command) -> Result<(), EngineError> {
        if let Command::Pause(id) = command {
            // A sequence can be paused only when all of its tokens are known, so steps in flight are read
            // first.
            while self.scheduler.is_in_flight(id) {
                self.read()?;
            }
        }
        let request_idx = command.request_idx();
        if let Err(error) = self.change(command) {
            (self.client.on_event)(Event::Rejected { request_idx, error });
        }
        Ok(())
    }

    fn change(&mut self, command: Command) -> Result<(), EngineError> {
        match command {
            Command::Add { request_idx, request, keep_open } => self.add(request_idx, &request, keep_open),
            Command::Extend { id, tokens, max_new_tokens } => self.extend(id, &tokens, max_new_tokens),
            Command::Pause(id) => self.scheduler.pause(id).map_err(EngineError::Schedule),
            Command::Resume(id) => self.scheduler.resume(id).map_err(EngineError::Schedule),
            Command::Cancel(id) => self.cancel(id),
        }
    }

    fn add(&mut self, request_idx: usize, request: &Request, keep_open: bool) -> Result<(), EngineError> {
        if self.outputs.has_request(request_idx) {
            return Err(EngineError::RepeatedRequest { request_idx });
        }
        let planned = self.bounds.plan(request_idx, request, keep_open)?;
        self.runner.add_request(request_idx, request)?;
        if let Err(source) = self.scheduler.add(request_idx, &planned) {
            self.runner.remove_request(request_idx);
            return Err(EngineError::Schedule(source));
        }
        self.outputs.add(request_idx, request);
        Ok(())
    }

    fn extend(
        &mut self,
        id: SequenceId,
        tokens: &[TokenId],
        max_new_tokens: usize,
    ) -> Result<(), EngineError> {
        let num_before = self.scheduler.find(id).map_or(0, |sequence| sequence.tokens().len());
        let within_context = self.bounds.plan_turn(id.request_idx, num_before, tokens, max_new_tokens)?;
        self.scheduler.extend(id, tokens, within_context).map_err(EngineError::Schedule)?;
        self.outputs.begin_turn(id, max_new_tokens);
        Ok(())
    }

    fn cancel(&mut self, id: SequenceId) -> Result<(), EngineError> {
        if self.scheduler.cancel(id).is_none() {
            return Err(EngineError::Schedule(SchedulerError::UnknownSequence { id }));
        }
        self.forget(id);
        (self.client.on_event)(Event::Cancelled { id });
        Ok(())
    }
}
