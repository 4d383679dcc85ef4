//! The order in which a run launches and reads the steps of a runner without tensors.

mod depth_one;

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;

use rlt_core::engine::{DetokenizeError, Detokenizer, SchedulerConfig};
use rlt_core::sampling::SamplingParams;
use rlt_core::types::TokenId;
use rlt_models::ModelConfig;

use super::*;
use crate::engine::{Command, CommandSource};
use crate::sampler::SampledToken;
use crate::{EngineOptions, Request};

/// A runner without a model. The token that it samples is the number of completion tokens before it.
struct FakeRunner {
    max_in_flight: usize,
    launched: VecDeque<Vec<SampledToken>>,
    num_launched: usize,
    num_read: usize,
    calls: Vec<String>,
}

impl Runner for FakeRunner {
    fn max_in_flight(&self) -> usize {
        self.max_in_flight
    }

    fn add_request(&mut self, request_idx: usize, _: &Request) -> Result<(), EngineError> {
        self.calls.push(format!("add {request_idx}"));
        Ok(())
    }

    fn remove_request(&mut self, request_idx: usize) {
        self.calls.push(format!("remove {request_idx}"));
    }

    fn launch(&mut self, input: &StepInput<'_>, _: &mut RolloutStats) -> Result<(), EngineError> {
        let sampled = |sequence: &Sequence| SampledToken {
            token: sequence.completion().len() as TokenId,
            logprob: (input.sampling)(sequence).temperature as f32 - 2.0,
        };
        self.launched.push_back(input.running.iter().map(sampled).collect());
        self.num_launched += 1;
        self.calls.push(format!("launch {}", self.num_launched));
        Ok(())
    }

    fn read(&mut self, _: &mut RolloutStats) -> Result<StepOutput, EngineError> {
        self.num_read += 1;
        self.calls.push(format!("read {}", self.num_read));
        let sampled = self.launched.pop_front().unwrap();
        Ok(StepOutput { routes: vec![Vec::new(); sampled.len()], sampled })
    }

    fn agrees_to_stop(&mut self, wants_stop: bool, _: usize) -> Result<bool, EngineError> {
        Ok(wants_stop)
    }

    fn finish(&mut self) -> Result<bool, EngineError> {
        self.calls.push("finish".into());
        Ok(false)
    }
}

struct NoText;

impl Detokenizer for NoText {
    fn decode(&self, _: &[TokenId]) -> Result<String, DetokenizeError> {
        Ok(String::new())
    }
}

/// Commands, each with the number of steps that are read before it.
struct Script {
    commands: VecDeque<(usize, Command)>,
    num_steps: Rc<Cell<usize>>,
}

impl CommandSource for Script {
    fn poll(&mut self) -> Option<Command> {
        let is_due = self.commands.front()?.0 <= self.num_steps.get();
        if is_due { self.wait() } else { None }
    }

    fn wait(&mut self) -> Option<Command> {
        self.commands.pop_front().map(|(_, command)| command)
    }
}

fn bounds() -> RequestBounds {
    let config = ModelConfig::from_json(&serde_json::json!({
        "architectures": ["LlamaForCausalLM"], "vocab_size": 256, "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32,
    }));
    RequestBounds::new(&EngineOptions::default(), &config.unwrap())
}

/// Adds a request of one sample of four tokens, before the first step.
fn add(keep_open: bool) -> (usize, Command) {
    let request = Request {
        prompt: [5, 6].into(),
        images: Vec::new(),
        seeds: vec![1],
        sampling: SamplingParams::default(),
        max_new_tokens: 4,
    };
    (0, Command::Add { request_idx: 0, request, keep_open })
}

const ID: SequenceId = SequenceId { request_idx: 0, sample_idx: 0 };

/// Calls of the runner, and events of the run.
fn run(max_in_flight: usize, commands: Vec<(usize, Command)>) -> (Vec<String>, Vec<Event>) {
    let config =
        SchedulerConfig { num_blocks: 64, block_size: 4, max_num_seqs: 4, max_num_batched_tokens: 64 };
    let mut scheduler = Scheduler::new(config).unwrap();
    let mut runner = FakeRunner {
        max_in_flight,
        launched: VecDeque::new(),
        num_launched: 0,
        num_read: 0,
        calls: Vec::new(),
    };
    let mut outputs = RequestOutputs::new(&NoText, Vec::new(), false);
    let num_steps = Rc::new(Cell::new(0));
    let mut script = Script { commands: commands.into(), num_steps: Rc::clone(&num_steps) };
    let mut stats = RolloutStats::default();
    let mut events = Vec::new();
    let mut on_step = |_: RolloutProgress| {
        num_steps.set(num_steps.get() + 1);
        ControlFlow::Continue(())
    };
    let mut on_event = |event: Event| events.push(event);
    let commands = Inbox::new(&mut script, None);
    let client = Client { commands, on_step: &mut on_step, on_event: &mut on_event };
    RunLoop::new(&mut runner, &mut scheduler, &mut outputs, client, bounds(), &mut stats).run().unwrap();
    (runner.calls, events)
}

/// Tokens of the events, and of the completions among them.
fn tokens(events: &[Event]) -> (Vec<TokenId>, Vec<Vec<TokenId>>) {
    let sampled = events.iter().filter_map(|event| match event {
        Event::Sampled { token, .. } => Some(*token),
        _ => None,
    });
    let completed = events.iter().filter_map(|event| match event {
        Event::TurnOver { completion, .. } | Event::Finished { completion, .. } => {
            Some(completion.tokens.clone())
        }
        _ => None,
    });
    (sampled.collect(), completed.collect())
}

#[test]
fn a_step_is_launched_before_the_one_before_is_read_if_two_may_be_in_flight() {
    let (calls, events) = run(1, vec![add(false)]);
    let one_by_one = ["launch 1", "read 1", "launch 2", "read 2", "launch 3", "read 3", "launch 4", "read 4"];
    assert_eq!(calls, [&["add 0"][..], &one_by_one, &["remove 0", "finish"]].concat());
    let expected = (vec![0, 1, 2, 3], vec![vec![0, 1, 2, 3]]);
    assert_eq!(tokens(&events), expected);
    let (calls, events) = run(2, vec![add(false)]);
    let ahead = ["launch 1", "launch 2", "read 1", "launch 3", "read 2", "launch 4", "read 3", "read 4"];
    assert_eq!(calls, [&["add 0"][..], &ahead, &["remove 0", "finish"]].concat());
    assert_eq!(tokens(&events), expected);
}

#[test]
fn a_pause_reads_the_tokens_in_flight_first() {
    let (calls, events) = run(2, vec![add(false), (1, Command::Pause(ID)), (2, Command::Resume(ID))]);
    let expected = ["launch 1", "launch 2", "read 1", "read 2", "launch 3", "launch 4", "read 3", "read 4"];
    assert_eq!(calls, [&["add 0"][..], &expected, &["remove 0", "finish"]].concat());
    assert_eq!(tokens(&events), (vec![0, 1, 2, 3], vec![vec![0, 1, 2, 3]]));
}

#[test]
fn the_tokens_in_flight_of_a_cancelled_sequence_are_dropped() {
    let (calls, events) = run(2, vec![add(false), (1, Command::Cancel(ID))]);
    assert_eq!(calls, ["add 0", "launch 1", "launch 2", "read 1", "remove 0", "read 2", "finish"]);
    assert_eq!(tokens(&events), (vec![0], Vec::new()));
    assert!(matches!(events[1], Event::Cancelled { id: ID }), "{events:?}");
}

#[test]
fn a_sequence_that_is_kept_open_begins_another_turn() {
    for max_in_flight in [1, 2] {
        let extend = Command::Extend { id: ID, tokens: vec![8, 9], max_new_tokens: 2 };
        let (calls, events) = run(max_in_flight, vec![add(true), (4, extend), (6, Command::Cancel(ID))]);
        assert_eq!(tokens(&events), (vec![0, 1, 2, 3, 0, 1], vec![vec![0, 1, 2, 3], vec![0, 1]]));
        assert_eq!(calls[calls.len() - 2..], ["remove 0", "finish"], "its request is dropped with it");
    }
}
