//! Random loads against a cache that is simulated token by token.

use std::collections::HashMap;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;

/// What a slot of the simulated cache holds: a fingerprint of the token in it and of everything before it.
type Fingerprint = u64;

fn fingerprints(tokens: &[TokenId]) -> Vec<Fingerprint> {
    let extend = |state: &mut u64, &token: &TokenId| {
        *state = (*state ^ u64::from(token)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
        Some(*state)
    };
    tokens.iter().scan(1, extend).collect()
}

struct Simulation {
    limits: SchedulerLimits,
    scheduler: Scheduler,
    cache: Vec<Option<Fingerprint>>,
    finished: HashMap<(usize, usize), Vec<TokenId>>,
    num_steps: usize,
}

impl Simulation {
    fn new(limits: SchedulerLimits, requests: &[SequenceRequest]) -> Self {
        let mut scheduler = Scheduler::new(limits).unwrap();
        requests.iter().for_each(|request| scheduler.add(request).unwrap());
        let cache = vec![None; limits.num_blocks as usize * limits.block_size];
        Self { limits, scheduler, cache, finished: HashMap::new(), num_steps: 0 }
    }

    /// Runs to the end; `stop_after` says how long each sample becomes.
    fn run(mut self, stop_after: &dyn Fn(&Sequence) -> usize) -> Self {
        while !self.scheduler.is_idle() {
            let oldest = self.scheduler.running().first().map(|s| (s.request_idx, s.sample_idx));
            let step = self.scheduler.schedule();
            assert!(!self.scheduler.running().is_empty(), "a step with work to do runs something");
            assert!(self.scheduler.running().len() <= self.limits.max_concurrent);
            if let Some(oldest) = oldest {
                let first = &self.scheduler.running()[0];
                assert_eq!((first.request_idx, first.sample_idx), oldest, "the oldest is never preempted");
            }
            self.prefill_and_copy(&step);
            self.decode();
            self.advance(stop_after);
            self.num_steps += 1;
        }
        self
    }

    fn prefill_and_copy(&mut self, step: &Step) {
        let planned: usize = step.prefills.iter().map(|prefill| prefill.tokens.len()).sum();
        assert!(step.prefills.len() <= 1 || planned <= self.limits.max_prefill_tokens);
        for prefill in &step.prefills {
            for (&slot, fingerprint) in prefill.slots.iter().zip(fingerprints(&prefill.tokens)) {
                self.cache[slot] = Some(fingerprint);
            }
        }
        // All reads before all writes: the order that asks most of the plan.
        let block =
            |idx: u32| idx as usize * self.limits.block_size..(idx as usize + 1) * self.limits.block_size;
        let read: Vec<_> = step.copies.iter().map(|copy| self.cache[block(copy.src)].to_vec()).collect();
        for (copy, content) in step.copies.iter().zip(read) {
            self.cache[block(copy.dst)].copy_from_slice(&content);
        }
    }

    fn decode(&mut self) {
        let block_size = self.limits.block_size;
        let expected: Vec<_> = self.scheduler.running().iter().map(|s| fingerprints(s.tokens())).collect();
        for (sequence, fingerprints) in self.scheduler.running().iter().zip(&expected) {
            self.cache[sequence.last_slot(block_size)] = fingerprints.last().copied();
        }
        // Every row is read after every row was written, so a slot written for two of them shows.
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

    fn advance(&mut self, stop_after: &dyn Fn(&Sequence) -> usize) {
        let draw = |s: &Sequence| {
            let drawn = s.completion().len() + 1;
            let token = (s.seed as u32).wrapping_mul(31).wrapping_add(drawn as u32);
            (token, s.is_at_last_token() || drawn >= stop_after(s))
        };
        let drawn: Vec<_> = self.scheduler.running().iter().map(draw).collect();
        for sequence in self.scheduler.advance(&drawn) {
            let key = (sequence.request_idx, sequence.sample_idx);
            let again = self.finished.insert(key, sequence.completion().to_vec());
            assert_eq!(again, None, "a sample finishes once");
        }
    }
}

fn request(prompt_len: usize, num_samples: u64, max_new_tokens: usize) -> SequenceRequest {
    let prompt: Arc<[TokenId]> = (0..prompt_len as u32).map(|t| t * 7 + prompt_len as u32).collect();
    SequenceRequest { prompt, seeds: (0..num_samples).collect(), max_new_tokens }
}

fn limits(num_blocks: u32, block_size: usize, max_concurrent: usize) -> SchedulerLimits {
    SchedulerLimits { num_blocks, block_size, max_concurrent, max_prefill_tokens: 64 }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_request_finishes_on_its_own_tokens_and_returns_its_blocks(
        shapes in prop::collection::vec((1usize..20, 1u64..6, 1usize..24), 1..8),
        block_size in 1usize..6,
        max_concurrent in 1usize..9,
        max_prefill_tokens in 1usize..40,
        spare_blocks in 0u32..12,
        stop_seed in 1usize..50,
    ) {
        let requests: Vec<_> = shapes.iter().map(|&(p, n, new)| request(p, n, new)).collect();
        let longest = requests.iter().map(|r| blocks_of_request(r, block_size)).max().unwrap_or(0);
        // Down to the fewest blocks with which the longest sample can run at all.
        let num_blocks = longest as u32 + spare_blocks;
        let limits = SchedulerLimits { num_blocks, block_size, max_concurrent, max_prefill_tokens };
        let stop_after = |s: &Sequence| 1 + (s.request_idx * 13 + s.sample_idx * 5 + stop_seed) % 24;
        let done = Simulation::new(limits, &requests).run(&stop_after);
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
        max_concurrent in 1usize..9,
        stop_seed in 1usize..50,
    ) {
        let requests: Vec<_> = shapes.iter().map(|&(p, n, new)| request(p, n, new)).collect();
        let num_blocks = Scheduler::blocks_wanted(&requests, block_size, max_concurrent) as u32;
        let stop_after = |s: &Sequence| 1 + (s.request_idx * 7 + s.sample_idx * 3 + stop_seed) % 24;
        let done = Simulation::new(limits(num_blocks, block_size, max_concurrent), &requests).run(&stop_after);
        prop_assert_eq!(done.scheduler.stats().preemptions, 0);
    }
}

#[test]
fn a_group_prompt_is_prefilled_once_and_its_full_blocks_are_shared() {
    let mut scheduler = Scheduler::new(limits(64, 4, 8)).unwrap();
    scheduler.add(&request(11, 8, 4)).unwrap();
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
fn samples_that_wait_for_a_place_fork_from_the_same_prefill() {
    let done = Simulation::new(limits(64, 4, 2), &[request(11, 8, 5)]).run(&|_| 5);
    assert_eq!(done.scheduler.stats().prefilled_tokens, 10);
    assert_eq!(done.num_steps, 4 * 5, "8 samples in 2 places");
}

#[test]
fn a_finished_sequence_leaves_at_once_and_a_waiting_one_joins() {
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
fn refuses_what_could_never_run() {
    let mut scheduler = Scheduler::new(limits(4, 4, 2)).unwrap();
    assert_eq!(scheduler.add(&request(0, 1, 1)), Err(SchedulerError::EmptyPrompt { request_idx: 0 }));
    assert_eq!(scheduler.add(&request(3, 1, 0)), Err(SchedulerError::NoNewTokens { request_idx: 0 }));
    let too_long = SchedulerError::TooLong { request_idx: 0, needed: 5, num_blocks: 4 };
    assert_eq!(scheduler.add(&request(10, 1, 8)), Err(too_long));
    assert_eq!(scheduler.add(&request(10, 1, 7)), Ok(()), "16 tokens in the cache, the 17th is never fed");
    let zero = Scheduler::new(limits(4, 0, 2)).map(|_| ());
    assert_eq!(zero, Err(SchedulerError::ZeroLimit { name: "block_size" }));
}
