//! The loop around a model runner: it applies commands, schedules, launches and reads steps, and reports.
//!
//! ```text
//! one step in flight (CPU)     launch 1, read 1, launch 2, read 2, launch 3, read 3
//! two steps in flight (GPU)    launch 1, launch 2, read 1, launch 3, read 2, read 3
//! ```
//! With two steps in flight, a step is launched before the tokens of the previous step are read. A sequence
//! that turns out to have ended in the previous step has then run once more; the extra token is dropped.

mod apply;

use std::ops::ControlFlow;

use rlt_core::engine::{PendingToken, Scheduler, Sequence, SequenceId};

use super::bounds::RequestBounds;
use super::commands::Event;
use super::inbox::Inbox;
use crate::completion::RequestOutputs;
use crate::runner::{Runner, StepInput, StepOutput};
use crate::{EngineError, RolloutProgress, RolloutStats};

/// Gives commands to a run, and receives its progress and events.
pub(super) struct Client<'c> {
    pub(super) commands: Inbox<'c>,
    /// Called after each step; may end the run there.
    pub(super) on_step: &'c mut dyn FnMut(RolloutProgress) -> ControlFlow<()>,
    pub(super) on_event: &'c mut dyn FnMut(Event),
}

/// One run of the engine.
pub(super) struct RunLoop<'a, 'o, 'c> {
    runner: &'a mut dyn Runner,
    scheduler: &'a mut Scheduler,
    outputs: &'a mut RequestOutputs<'o>,
    client: Client<'c>,
    bounds: RequestBounds,
    stats: &'a mut RolloutStats,
    progress: RolloutProgress,
    /// Whether this rank was asked to stop.
    wants_stop: bool,
}

impl<'a, 'o, 'c> RunLoop<'a, 'o, 'c> {
    pub(super) fn new(
        runner: &'a mut dyn Runner,
        scheduler: &'a mut Scheduler,
        outputs: &'a mut RequestOutputs<'o>,
        client: Client<'c>,
        bounds: RequestBounds,
        stats: &'a mut RolloutStats,
    ) -> Self {
        let progress = RolloutProgress::default();
        Self { runner, scheduler, outputs, client, bounds, stats, progress, wants_stop: false }
    }

    /// Runs until nothing is left to do and no command can come.
    ///
    /// # Errors
    /// [`EngineError::Interrupted`] if the client of a rank ends the run, or the error of a step.
    pub(super) fn run(mut self) -> Result<(), EngineError> {
        loop {
            while let Some(command) = self.client.commands.poll()? {
                self.apply(command)?;
            }
            while self.scheduler.num_in_flight() < self.runner.max_in_flight() && !self.scheduler.is_idle() {
                self.launch()?;
            }
            if self.scheduler.num_in_flight() > 0 {
                self.read()?;
            } else if let Some(command) = self.client.commands.wait()? {
                self.apply(command)?;
            } else {
                break;
            }
        }
        if self.runner.finish()? {
            return Err(EngineError::Interrupted);
        }
        let scheduled = self.scheduler.stats();
        self.stats.num_tokens = self.progress.num_tokens;
        self.stats.num_prefilled_tokens = scheduled.prefilled_tokens;
        self.stats.num_preemptions = scheduled.preemptions;
        Ok(())
    }

    /// Schedules a step and launches it.
    fn launch(&mut self) -> Result<(), EngineError> {
        let step = self.scheduler.schedule();
        let input = StepInput {
            step: &step,
            running: self.scheduler.running(),
            sampling: &|sequence| self.outputs.sampling(sequence.id()),
        };
        self.runner.launch(&input, self.stats)?;
        self.scheduler.launch();
        Ok(())
    }

    /// Reads the oldest launched step, and records its tokens.
    fn read(&mut self) -> Result<(), EngineError> {
        self.stats.num_steps += 1;
        let StepOutput { sampled, routes } = self.runner.read(self.stats)?;
        let mut tokens = Vec::with_capacity(sampled.len());
        let mut num_new = 0;
        for ((pending, sampled), routes) in self.scheduler.oldest_launched().iter().zip(sampled).zip(routes) {
            let (token, logprob) = (sampled.token, sampled.logprob);
            let Some(PendingToken { id, is_longest, .. }) = *pending else {
                // The sequence has ended since the step was launched.
                tokens.push((token, true));
                continue;
            };
            num_new += 1;
            self.outputs.log_routes(id, &routes);
            tokens.push((token, self.outputs.push(id, sampled, is_longest)?));
            (self.client.on_event)(Event::Sampled { id, token, logprob });
        }
        let ended = self.scheduler.commit(&tokens);
        ended.iter().try_for_each(|sequence| self.end(sequence))?;
        self.report(num_new, ended.len())
    }

    /// Reports the completion of a sequence that has ended.
    fn end(&mut self, sequence: &Sequence) -> Result<(), EngineError> {
        let id = sequence.id();
        let Some(completion) = self.outputs.complete(id)? else { return Ok(()) };
        if sequence.is_turn_over() {
            (self.client.on_event)(Event::TurnOver { id, completion });
        } else {
            self.forget(id);
            (self.client.on_event)(Event::Finished { id, completion });
        }
        Ok(())
    }

    /// Drops the output of a sequence that no longer exists and, if it was the last of its request, the
    /// request's images.
    fn forget(&mut self, id: SequenceId) {
        if self.outputs.remove(id) {
            self.runner.remove_request(id.request_idx);
        }
    }

    /// Reports the progress after a step, with `num_new` new tokens and `num_ended` ended sequences. Fails if
    /// the run is to stop.
    fn report(&mut self, num_new: usize, num_ended: usize) -> Result<(), EngineError> {
        // After a stop request progress is not reported until all ranks know of it.
        if !self.wants_stop {
            self.progress.num_tokens += num_new;
            self.progress.num_finished += num_ended;
            self.progress.num_running = self.scheduler.running().len();
            self.progress.num_waiting = self.scheduler.num_waiting();
            self.wants_stop = (self.client.on_step)(self.progress).is_break();
        }
        let stops = self.runner.agrees_to_stop(self.wants_stop, self.stats.num_steps)?;
        if stops { Err(EngineError::Interrupted) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests;
