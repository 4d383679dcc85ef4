//! A run with one step in flight against the scheduler alone, where each step advances at once.

use std::collections::BTreeMap;

use rlt_core::engine::Step;

use super::*;

/// Limits under which the second request is preempted.
const LIMITS: SchedulerConfig =
    SchedulerConfig { num_blocks: 5, block_size: 4, max_num_seqs: 2, max_num_batched_tokens: 64 };
/// Token that ends a sample: the third one of seed 4.
const STOP: TokenId = 126;

/// A step as it was planned.
#[derive(Debug, PartialEq)]
struct Planned {
    step: Step,
    rows: Vec<Row>,
}

/// A sequence in a step's decode.
#[derive(Debug, PartialEq)]
struct Row {
    id: SequenceId,
    tokens: Vec<TokenId>,
    block_table: Vec<u32>,
}

impl Planned {
    fn new(step: &Step, running: &[Sequence]) -> Self {
        let row = |sequence: &Sequence| Row {
            id: sequence.id(),
            tokens: sequence.tokens().to_vec(),
            block_table: sequence.block_table().collect(),
        };
        Self { step: step.clone(), rows: running.iter().map(row).collect() }
    }
}

/// Steps, completions and counts of a run.
#[derive(Debug, PartialEq)]
struct Record {
    planned: Vec<Planned>,
    /// Tokens and log-probs of each sequence, in the order in which the sequences ended.
    completed: Vec<(SequenceId, Vec<SampledToken>)>,
    num_tokens: usize,
    num_steps: usize,
    num_prefilled_tokens: usize,
    num_preemptions: usize,
    num_free_blocks: usize,
}

/// The next token of a sequence, and a log-prob that no other token has.
fn drawn(sequence: &Sequence) -> SampledToken {
    let num_drawn = sequence.completion().len();
    let token = (sequence.seed as usize * 31 + num_drawn) as TokenId;
    SampledToken { token, logprob: -(token as f32) - 0.5 }
}

/// A runner that records the steps that are launched.
#[derive(Default)]
struct Recorder {
    launched: VecDeque<Vec<SampledToken>>,
    planned: Vec<Planned>,
}

impl Runner for Recorder {
    fn max_in_flight(&self) -> usize {
        1
    }

    fn add_request(&mut self, _: usize, _: &Request) -> Result<(), EngineError> {
        Ok(())
    }

    fn remove_request(&mut self, _: usize) {}

    fn launch(&mut self, input: &StepInput<'_>, _: &mut RolloutStats) -> Result<(), EngineError> {
        self.planned.push(Planned::new(input.step, input.running));
        self.launched.push_back(input.running.iter().map(drawn).collect());
        Ok(())
    }

    fn read(&mut self, _: &mut RolloutStats) -> Result<StepOutput, EngineError> {
        let sampled = self.launched.pop_front().unwrap();
        Ok(StepOutput { routes: vec![Vec::new(); sampled.len()], sampled })
    }

    fn agrees_to_stop(&mut self, wants_stop: bool, _: usize) -> Result<bool, EngineError> {
        Ok(wants_stop)
    }

    fn finish(&mut self) -> Result<bool, EngineError> {
        Ok(false)
    }
}

fn requests() -> Vec<Request> {
    let request = |prompt_len: TokenId, seeds: &[u64], max_new_tokens: usize| Request {
        prompt: (0..prompt_len).collect(),
        images: Vec::new(),
        seeds: seeds.to_vec(),
        sampling: SamplingParams { stop_token_ids: vec![STOP], ..SamplingParams::default() },
        max_new_tokens,
    };
    vec![request(4, &[1], 12), request(4, &[2], 12), request(3, &[3, 4], 6)]
}

/// Runs the requests in the engine's loop, which launches each step and commits it when it is read.
fn by_loop(requests: &[Request]) -> Record {
    let mut scheduler = Scheduler::new(LIMITS).unwrap();
    let mut runner = Recorder::default();
    let mut outputs = RequestOutputs::new(&NoText, Vec::new(), false);
    let add = |(request_idx, request): (usize, &Request)| {
        (0, Command::Add { request_idx, request: request.clone(), keep_open: false })
    };
    let commands = requests.iter().enumerate().map(add).collect();
    let mut script = Script { commands, num_steps: Rc::default() };
    let mut stats = RolloutStats::default();
    let mut completed: Vec<(SequenceId, Vec<SampledToken>)> = Vec::new();
    let mut on_step = |_: RolloutProgress| ControlFlow::Continue(());
    let mut on_event = |event: Event| {
        if let Event::Finished { id, completion } = event {
            let tokens = completion.tokens.into_iter().zip(completion.rollout_logprobs);
            completed.push((id, tokens.map(|(token, logprob)| SampledToken { token, logprob }).collect()));
        }
    };
    let commands = Inbox::new(&mut script, None);
    let client = Client { commands, on_step: &mut on_step, on_event: &mut on_event };
    RunLoop::new(&mut runner, &mut scheduler, &mut outputs, client, bounds(), &mut stats).run().unwrap();
    Record {
        planned: runner.planned,
        completed,
        num_tokens: stats.num_tokens,
        num_steps: stats.num_steps,
        num_prefilled_tokens: stats.num_prefilled_tokens,
        num_preemptions: stats.num_preemptions,
        num_free_blocks: scheduler.num_free_blocks(),
    }
}

/// Runs the requests by the scheduler alone.
fn by_advance(requests: &[Request]) -> Record {
    let mut scheduler = Scheduler::new(LIMITS).unwrap();
    for (request_idx, request) in requests.iter().enumerate() {
        let planned = bounds().plan(request_idx, request, false).unwrap();
        scheduler.add(request_idx, &planned).unwrap();
    }
    let (mut planned, mut completed, mut num_tokens) = (Vec::new(), Vec::new(), 0);
    let mut outputs: BTreeMap<SequenceId, Vec<SampledToken>> = BTreeMap::new();
    while !scheduler.is_idle() {
        let step = scheduler.schedule();
        planned.push(Planned::new(&step, scheduler.running()));
        let mut tokens = Vec::new();
        for sequence in scheduler.running() {
            let sampled = drawn(sequence);
            tokens.push((sampled.token, sequence.is_at_last_token() || sampled.token == STOP));
            outputs.entry(sequence.id()).or_default().push(sampled);
            num_tokens += 1;
        }
        for sequence in scheduler.advance(&tokens) {
            completed.push((sequence.id(), outputs.remove(&sequence.id()).unwrap()));
        }
    }
    Record {
        num_steps: planned.len(),
        planned,
        completed,
        num_tokens,
        num_prefilled_tokens: scheduler.stats().prefilled_tokens,
        num_preemptions: scheduler.stats().preemptions,
        num_free_blocks: scheduler.num_free_blocks(),
    }
}

#[test]
fn launch_and_commit_at_depth_one_is_advance() {
    let requests = requests();
    let (by_loop, by_advance) = (by_loop(&requests), by_advance(&requests));
    assert_eq!(by_loop, by_advance);
    assert!(by_loop.num_preemptions > 0, "a sequence is computed again");
    let last_of = |sample_idx: usize| {
        let id = SequenceId { request_idx: 2, sample_idx };
        let (_, tokens) = by_loop.completed.iter().find(|(of, _)| *of == id).unwrap();
        (tokens.len(), tokens[tokens.len() - 1].token)
    };
    assert_eq!(last_of(0), (6, 98), "the token limit ends a sample");
    assert_eq!(last_of(1), (3, STOP), "a token ends a sample");
    assert_eq!(by_loop.num_free_blocks, LIMITS.num_blocks as usize);
}
