//! Commands to an engine at given steps, or in answer to its events, and the events that follow.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;
use std::rc::Rc;
use std::time::Duration;

use rlt_core::types::{Completion, TokenId};
use rlt_decoder::Decoder;
use rlt_engine::{
    Command, CommandSource, Engine, EngineOptions, Event, NoCommandYet, Request, RolloutStats, SequenceId,
};

use super::fixture::{Letters, options};

/// Tokens that extend a sequence.
pub(crate) const EXTENSION: [TokenId; 3] = [7, 21, 3];

/// Options with a context of 64 tokens and eight concurrent sequences.
pub(crate) fn session() -> EngineOptions {
    EngineOptions { max_num_seqs: 8, max_model_len: Some(64), ..options() }
}

pub(crate) fn id(request_idx: usize, sample_idx: usize) -> SequenceId {
    SequenceId { request_idx, sample_idx }
}

/// Makes commands that add each request before the first step.
pub(crate) fn added(requests: &[Request], keep_open: bool) -> Vec<(usize, Command)> {
    let add = |(request_idx, request): (usize, &Request)| {
        (0, Command::Add { request_idx, request: request.clone(), keep_open })
    };
    requests.iter().enumerate().map(add).collect()
}

/// Events of a run.
#[derive(Debug, Default)]
pub(crate) struct Played {
    /// Completions of each sequence, one a turn.
    pub(crate) completions: BTreeMap<SequenceId, Vec<Completion>>,
    pub(crate) cancelled: Vec<SequenceId>,
    /// Requests of the commands that were rejected, and the reasons.
    pub(crate) rejected: Vec<(usize, String)>,
    pub(crate) num_sampled: usize,
    pub(crate) stats: RolloutStats,
}

impl Played {
    fn record(&mut self, event: Event) {
        match event {
            Event::Sampled { .. } => self.num_sampled += 1,
            Event::TurnOver { id, completion } | Event::Finished { id, completion } => {
                self.completions.entry(id).or_default().push(completion);
            }
            Event::Cancelled { id } => self.cancelled.push(id),
            Event::Rejected { request_idx, error } => self.rejected.push((request_idx, error.to_string())),
        }
    }

    /// Returns the completions of one turn, a list for each sequence.
    pub(crate) fn turn(&self, turn: usize) -> Vec<Vec<Completion>> {
        self.completions.values().map(|turns| vec![turns[turn].clone()]).collect()
    }
}

/// Commands, each with the number of steps before it.
struct Script {
    commands: VecDeque<(usize, Command)>,
    num_steps: Rc<Cell<usize>>,
    /// Whether the last call of [`CommandSource::wait_at_most`] had no result.
    has_hesitated: bool,
}

impl CommandSource for Script {
    fn poll(&mut self) -> Option<Command> {
        let is_due = self.commands.front()?.0 <= self.num_steps.get();
        if is_due { self.commands.pop_front().map(|(_, command)| command) } else { None }
    }

    /// No sequence runs, so the steps before the next command count as done.
    fn wait(&mut self) -> Option<Command> {
        let (step, command) = self.commands.pop_front()?;
        self.num_steps.set(self.num_steps.get().max(step));
        Some(command)
    }

    /// Returns a result at every other call.
    fn wait_at_most(&mut self, _: Duration) -> Result<Option<Command>, NoCommandYet> {
        self.has_hesitated = !self.has_hesitated;
        if self.has_hesitated { Err(NoCommandYet) } else { Ok(self.wait()) }
    }
}

/// Runs an engine with commands, each of which is due after a number of steps.
pub(crate) fn play(decoder: &Decoder, options: EngineOptions, commands: Vec<(usize, Command)>) -> Played {
    let mut engine = Engine::new(options);
    engine.sync_weights(decoder, 0).unwrap();
    play_on(&mut engine, decoder, commands)
}

/// Runs an engine that has the decoder's weights, as [`play`] does.
pub(crate) fn play_on(engine: &mut Engine, decoder: &Decoder, commands: Vec<(usize, Command)>) -> Played {
    let num_steps = Rc::new(Cell::new(0));
    let (commands, has_hesitated) = (commands.into(), false);
    let mut script = Script { commands, num_steps: Rc::clone(&num_steps), has_hesitated };
    let mut count = |_| {
        num_steps.set(num_steps.get() + 1);
        ControlFlow::Continue(())
    };
    let mut played = Played::default();
    engine.run(decoder, &Letters, &mut script, &mut count, &mut |event| played.record(event)).unwrap();
    played.stats = engine.stats();
    played
}

/// Commands that answer events.
struct Answers(Rc<RefCell<VecDeque<Command>>>);

impl CommandSource for Answers {
    fn poll(&mut self) -> Option<Command> {
        self.0.borrow_mut().pop_front()
    }

    fn wait(&mut self) -> Option<Command> {
        self.0.borrow_mut().pop_front()
    }
}

/// Extends every sequence by [`EXTENSION`] as soon as its first turn is over, and cancels it after its
/// second.
pub(crate) fn converse(decoder: &Decoder, options: EngineOptions, requests: &[Request]) -> Played {
    let commands: VecDeque<Command> = added(requests, true).into_iter().map(|(_, command)| command).collect();
    let answers = Rc::new(RefCell::new(commands));
    let mut played = Played::default();
    let mut answer = |event: Event| {
        if let Event::TurnOver { id, .. } = &event {
            let max_new_tokens = requests[id.request_idx].max_new_tokens;
            let command = match played.completions.contains_key(id) {
                false => Command::Extend { id: *id, tokens: EXTENSION.to_vec(), max_new_tokens },
                true => Command::Cancel(*id),
            };
            answers.borrow_mut().push_back(command);
        }
        played.record(event);
    };
    let mut engine = Engine::new(options);
    engine.sync_weights(decoder, 0).unwrap();
    let mut go_on = |_| ControlFlow::Continue(());
    engine.run(decoder, &Letters, &mut Answers(Rc::clone(&answers)), &mut go_on, &mut answer).unwrap();
    played.stats = engine.stats();
    played
}
