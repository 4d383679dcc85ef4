//! Random loads against a cache that is simulated token by token.

mod commands;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use proptest::prelude::*;

use super::*;

/// The content of a slot of the simulated cache: a fingerprint of the token in it and of everything before
/// it.
type Fingerprint = u64;

fn fingerprints(tokens: &[TokenId]) -> Vec<Fingerprint> {
    fingerprints_after(1, tokens)
}

fn fingerprints_after(before: Fingerprint, tokens: &[TokenId]) -> Vec<Fingerprint> {
    let extend = |state: &mut u64, &token: &TokenId| {
        *state = (*state ^ u64::from(token)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
        Some(*state)
    };
    tokens.iter().scan(before, extend).collect()
}

struct Simulation {
    limits: SchedulerConfig,
    scheduler: Scheduler,
    cache: Vec<Option<Fingerprint>>,
    finished: HashMap<(usize, usize), Vec<TokenId>>,
    num_steps: usize,
    /// Whether each step is launched before the tokens of the previous step are read.
    is_ahead: bool,
    /// Drawn tokens of launched steps that are not read yet, and whether each is the last of its sequence.
    launched: VecDeque<Vec<(TokenId, bool)>>,
}

impl Simulation {
    fn new(limits: SchedulerConfig, requests: &[SequenceRequest]) -> Self {
        let mut scheduler = Scheduler::new(limits).unwrap();
        requests.iter().enumerate().for_each(|(idx, request)| scheduler.add(idx, request).unwrap());
        let cache = vec![None; limits.num_blocks as usize * limits.block_size];
        let (finished, launched) = (HashMap::new(), VecDeque::new());
        Self { limits, scheduler, cache, finished, num_steps: 0, is_ahead: false, launched }
    }

    fn ahead(self) -> Self {
        Self { is_ahead: true, ..self }
    }

    /// Runs all requests to their end; `stop_after` returns the length of each sample.
    fn run(mut self, stop_after: &dyn Fn(&Sequence) -> usize) -> Self {
        while !self.scheduler.is_idle() || !self.launched.is_empty() {
            self.step(stop_after);
        }
        self
    }

    /// Runs a step, or reads a launched one if nothing is left to run.
    fn step(&mut self, stop_after: &dyn Fn(&Sequence) -> usize) {
        if self.scheduler.is_idle() {
            return self.read();
        }
        let oldest = self.scheduler.running().first().map(Sequence::id);
        let step = self.scheduler.schedule();
        assert!(!self.scheduler.running().is_empty(), "a step with work to do runs something");
        assert!(self.scheduler.running().len() <= self.limits.max_num_seqs);
        if let Some(oldest) = oldest {
            assert_eq!(self.scheduler.running()[0].id(), oldest, "the oldest is never preempted");
        }
        self.prefill_and_copy(&step);
        self.decode();
        if self.is_ahead {
            self.launched.push_back(self.drawn(stop_after));
            self.scheduler.launch();
            if self.launched.len() > 1 {
                self.read();
            }
        } else {
            let finished = self.scheduler.advance(&self.drawn(stop_after));
            self.finish(finished);
        }
        self.num_steps += 1;
    }

    fn prefill_and_copy(&mut self, step: &Step) {
        for pass in step.prefill_passes() {
            let planned: usize = pass.iter().map(|prefill| prefill.tokens.len()).sum();
            assert!(planned <= self.limits.max_num_batched_tokens, "a pass keeps to its budget");
            pass.iter().for_each(|prefill| self.prefill(prefill));
        }
        // All blocks are read before any is written, which is the order that demands most of the plan.
        let block =
            |idx: u32| idx as usize * self.limits.block_size..(idx as usize + 1) * self.limits.block_size;
        let read: Vec<_> = step.copies.iter().map(|copy| self.cache[block(copy.src)].to_vec()).collect();
        for (copy, content) in step.copies.iter().zip(read) {
            self.cache[block(copy.dst)].copy_from_slice(&content);
        }
    }

    /// The result of a chunk depends on the cached tokens before it.
    fn prefill(&mut self, prefill: &Prefill) {
        let block_size = self.limits.block_size;
        let slot_of = |position: usize| {
            prefill.block_table[position / block_size] as usize * block_size + position % block_size
        };
        let before = match prefill.first_position {
            0 => 1,
            first => self.cache[slot_of(first - 1)].expect("the piece before is in the cache"),
        };
        let computed = fingerprints_after(before, &prefill.tokens);
        for (idx, (&slot, fingerprint)) in prefill.slots.iter().zip(computed).enumerate() {
            assert_eq!(slot, slot_of(prefill.first_position + idx), "the table names the block of each slot");
            self.cache[slot] = Some(fingerprint);
        }
    }

    fn decode(&mut self) {
        let block_size = self.limits.block_size;
        let expected: Vec<_> =
            self.scheduler.running().iter().map(|s| fingerprints(&true_tokens(s))).collect();
        for (sequence, fingerprints) in self.scheduler.running().iter().zip(&expected) {
            self.cache[sequence.last_slot(block_size)] = fingerprints.last().copied();
        }
        // Rows are read only after all rows are written, so a slot that was written for two rows is detected.
        for (sequence, fingerprints) in self.scheduler.running().iter().zip(&expected) {
            let slots = sequence.block_table().flat_map(|block| {
                let first = block as usize * block_size;
                first..first + block_size
            });
            let seen: Vec<_> = slots.take(fingerprints.len()).map(|slot| self.cache[slot]).collect();
            let own: Vec<_> = fingerprints.iter().copied().map(Some).collect();
            assert_eq!(seen, own, "a row sees its own tokens and nothing else");
        }
    }

    /// Returns the tokens that the running sequences draw, and whether each is the last of its sequence.
    fn drawn(&self, stop_after: &dyn Fn(&Sequence) -> usize) -> Vec<(TokenId, bool)> {
        let draw = |s: &Sequence| {
            let drawn = s.completion().len() + 1;
            (drawn_token(s, drawn), s.is_at_last_token() || drawn >= stop_after(s))
        };
        self.scheduler.running().iter().map(draw).collect()
    }

    /// Reads the tokens of the oldest step that was launched.
    fn read(&mut self) {
        let drawn = self.launched.pop_front().unwrap();
        let finished = self.scheduler.commit(&drawn);
        self.finish(finished);
    }

    fn finish(&mut self, finished: Vec<Sequence>) {
        for sequence in finished {
            assert_eq!(sequence.tokens(), true_tokens(&sequence), "every token was named");
            let key = (sequence.request_idx, sequence.sample_idx);
            let again = self.finished.insert(key, sequence.completion().to_vec());
            assert_eq!(again, None, "a sample finishes once");
        }
    }
}

/// The `drawn`-th token of a completion, from 1.
fn drawn_token(s: &Sequence, drawn: usize) -> TokenId {
    (s.seed as u32).wrapping_mul(31).wrapping_add(drawn as u32)
}

/// Returns all tokens of a sequence, including those that the scheduler does not know yet.
fn true_tokens(s: &Sequence) -> Vec<TokenId> {
    let prompt = &s.tokens()[..s.tokens().len() - s.completion().len()];
    let completion = (1..=s.completion().len()).map(|drawn| drawn_token(s, drawn));
    prompt.iter().copied().chain(completion).collect()
}

fn request(prompt_len: usize, num_samples: u64, max_new_tokens: usize) -> SequenceRequest {
    let prompt: Arc<[TokenId]> = (0..prompt_len as u32).map(|t| t * 7 + prompt_len as u32).collect();
    SequenceRequest { prompt, seeds: (0..num_samples).collect(), max_new_tokens, keep_open: false }
}

fn limits(num_blocks: u32, block_size: usize, max_num_seqs: usize) -> SchedulerConfig {
    SchedulerConfig { num_blocks, block_size, max_num_seqs, max_num_batched_tokens: 64 }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_request_finishes_on_its_own_tokens_and_returns_its_blocks(
        shapes in prop::collection::vec((1usize..20, 1u64..6, 1usize..24), 1..8),
        block_size in 1usize..6,
        max_num_seqs in 1usize..9,
        max_num_batched_tokens in 1usize..40,
        spare_blocks in 0u32..12,
        stop_seed in 1usize..50,
    ) {
        let requests: Vec<_> = shapes.iter().map(|&(p, n, new)| request(p, n, new)).collect();
        let longest = requests.iter().map(|r| r.max_blocks(block_size)).max().unwrap_or(0);
        // Without spare blocks the cache holds only the longest sample.
        let num_blocks = longest as u32 + spare_blocks;
        let limits = SchedulerConfig { num_blocks, block_size, max_num_seqs, max_num_batched_tokens };
        let stop_after = |s: &Sequence| 1 + (s.request_idx * 13 + s.sample_idx * 5 + stop_seed) % 24;
        let done = Simulation::new(limits, &requests).run(&stop_after);
        let ahead = Simulation::new(limits, &requests).ahead().run(&stop_after);
        prop_assert_eq!(&ahead.finished, &done.finished, "one step ahead nothing else is written");
        prop_assert_eq!(ahead.scheduler.num_free_blocks(), num_blocks as usize);
        prop_assert_eq!(done.scheduler.num_free_blocks(), num_blocks as usize);
        let num_samples: usize = requests.iter().map(|r| r.seeds.len()).sum();
        prop_assert_eq!(done.finished.len(), num_samples);
        for (&(request_idx, sample_idx), completion) in &done.finished {
            let wanted = 1 + (request_idx * 13 + sample_idx * 5 + stop_seed) % 24;
            prop_assert_eq!(completion.len(), wanted.min(requests[request_idx].max_new_tokens));
        }
    }
}

proptest! {
    #[test]
    fn with_the_blocks_wanted_nothing_is_ever_preempted(
        shapes in prop::collection::vec((1usize..30, 1u64..6, 1usize..24), 1..8),
        block_size in 1usize..6,
        max_num_seqs in 1usize..9,
        stop_seed in 1usize..50,
    ) {
        let requests: Vec<_> = shapes.iter().map(|&(p, n, new)| request(p, n, new)).collect();
        let num_blocks = Scheduler::blocks_wanted(&requests, block_size, max_num_seqs) as u32;
        let stop_after = |s: &Sequence| 1 + (s.request_idx * 7 + s.sample_idx * 3 + stop_seed) % 24;
        let done = Simulation::new(limits(num_blocks, block_size, max_num_seqs), &requests).run(&stop_after);
        prop_assert_eq!(done.scheduler.stats().preemptions, 0);
    }
}

#[test]
fn a_group_prompt_is_prefilled_once_and_its_full_blocks_are_shared() {
    let mut scheduler = Scheduler::new(limits(64, 4, 8)).unwrap();
    scheduler.add(0, &request(11, 8, 4)).unwrap();
    let step = scheduler.schedule();
    assert_eq!(step.prefills.len(), 1);
    assert_eq!(step.prefills[0].tokens.len(), 10, "the last prompt token is fed by the decode");
    let tables: Vec<Vec<u32>> = scheduler.running().iter().map(|s| s.block_table().collect()).collect();
    assert!(tables.iter().all(|table| table[..2] == tables[0][..2]));
    let mut own: Vec<u32> = tables.iter().map(|table| table[2]).collect();
    own.sort_unstable();
    own.dedup();
    assert_eq!(own.len(), 8, "each sample writes into a block of its own");
    assert_eq!(step.copies.len(), 7, "the last sample takes the prompt's own partial block");
    assert_eq!(scheduler.num_free_blocks(), 64 - 2 - 8);
}

#[test]
fn a_prompt_beyond_the_budget_is_cut_by_its_own_length_alone() {
    let pieces_of_second = |first_len: usize| {
        let limits = SchedulerConfig { max_num_batched_tokens: 4, ..limits(64, 4, 8) };
        let mut scheduler = Scheduler::new(limits).unwrap();
        scheduler.add(0, &request(first_len, 1, 4)).unwrap();
        scheduler.add(1, &request(12, 1, 4)).unwrap();
        let prefills = std::iter::from_fn(|| {
            let prefills = scheduler.schedule().prefills;
            scheduler.advance(&vec![(1, false); scheduler.running().len()]);
            Some(prefills)
        });
        let of_second = prefills.take(3).flatten().filter(|prefill| prefill.tokens[0] % 7 == 12 % 7);
        of_second.map(|prefill| (prefill.first_position, prefill.tokens.len())).collect::<Vec<_>>()
    };
    assert_eq!(pieces_of_second(2), [(0, 4), (4, 4), (8, 3)]);
    assert_eq!(pieces_of_second(2), pieces_of_second(4), "whatever else is prefilled");
}

#[test]
fn samples_that_wait_for_a_place_fork_from_the_same_prefill() {
    let done = Simulation::new(limits(64, 4, 2), &[request(11, 8, 5)]).run(&|_| 5);
    assert_eq!(done.scheduler.stats().prefilled_tokens, 10);
    assert_eq!(done.num_steps, 4 * 5, "8 samples in 2 places");
}

#[test]
fn a_finished_sequence_is_removed_at_once_and_a_waiting_one_is_admitted() {
    let requests = [request(3, 1, 9), request(3, 1, 9), request(3, 1, 9)];
    let lengths = [2, 9, 3];
    let done = Simulation::new(limits(64, 4, 2), &requests).run(&|s| lengths[s.request_idx]);
    assert_eq!(done.num_steps, 9, "the third runs in the place of the first, beside the second");
}

#[test]
fn preemption_computes_the_youngest_again() {
    let requests = [request(4, 1, 12), request(4, 1, 12)];
    let done = Simulation::new(limits(5, 4, 2), &requests).run(&|_| 12);
    let stats = done.scheduler.stats();
    assert_eq!(stats.preemptions, 1);
    assert!(stats.prefilled_tokens > 6, "the preempted one's tokens are prefilled a second time");
    assert_eq!(done.finished.len(), 2);
}

#[test]
fn with_a_step_in_flight_only_a_sequence_that_a_token_ends_runs_a_step_more() {
    let steps = |stop_after: usize| {
        let simulation = || Simulation::new(limits(64, 4, 2), &[request(4, 1, 6)]);
        let (now, ahead) = (simulation().run(&|_| stop_after), simulation().ahead().run(&|_| stop_after));
        assert_eq!(now.finished, ahead.finished);
        (now.num_steps, ahead.num_steps)
    };
    assert_eq!(steps(6), (6, 6), "the longest is known without its tokens");
    assert_eq!(steps(3), (3, 4), "the token after the last one is dropped");
}

#[test]
fn refuses_what_could_never_run() {
    let mut scheduler = Scheduler::new(limits(4, 4, 2)).unwrap();
    assert_eq!(scheduler.add(0, &request(0, 1, 1)), Err(SchedulerError::EmptyPrompt { request_idx: 0 }));
    assert_eq!(scheduler.add(0, &request(3, 1, 0)), Err(SchedulerError::NoNewTokens { request_idx: 0 }));
    let too_long = SchedulerError::TooLong { request_idx: 0, needed: 5, num_blocks: 4 };
    assert_eq!(scheduler.add(0, &request(10, 1, 8)), Err(too_long));
    assert_eq!(scheduler.add(0, &request(10, 1, 7)), Ok(()), "16 tokens in the cache, the 17th is never fed");
    let zero = Scheduler::new(limits(4, 0, 2)).map(|_| ());
    assert_eq!(zero, Err(SchedulerError::ZeroLimit { name: "block_size" }));
}
