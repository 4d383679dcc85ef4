//! Random histories of commands, and what each command does to blocks and to other sequences.

use super::*;

fn open(request: SequenceRequest) -> SequenceRequest {
    SequenceRequest { keep_open: true, ..request }
}

fn id(request_idx: usize, sample_idx: usize) -> SequenceId {
    SequenceId { request_idx, sample_idx }
}

impl Simulation {
    /// Reads steps until none samples a token of the sequence.
    fn settle(&mut self, id: SequenceId) {
        while self.scheduler.is_in_flight(id) {
            self.read();
        }
    }

    fn pause(&mut self, id: SequenceId) -> Result<(), SchedulerError> {
        self.settle(id);
        self.scheduler.pause(id)
    }

    /// Extends a sequence by tokens that depend on its length.
    fn extend(
        &mut self,
        id: SequenceId,
        num_tokens: u32,
        max_new_tokens: usize,
    ) -> Result<(), SchedulerError> {
        let first = self.scheduler.find(id).map_or(0, |sequence| sequence.tokens().len() as u32);
        let tokens: Vec<TokenId> = (0..num_tokens).map(|token| 1000 + 7 * first + token).collect();
        self.scheduler.extend(id, &tokens, max_new_tokens)?;
        self.finished.remove(&(id.request_idx, id.sample_idx));
        Ok(())
    }

    /// Runs one command: a step, or a command to the sequence `id`.
    fn apply(&mut self, command: u8, id: SequenceId, stop_after: &dyn Fn(&Sequence) -> usize) {
        let num_free = self.scheduler.num_free_blocks();
        match command {
            0 => {
                let _ = self.pause(id);
            }
            1 => {
                let _ = self.scheduler.resume(id);
            }
            2 | 3 => {
                let _ = self.extend(id, 1 + id.sample_idx as u32, 2 + id.request_idx);
            }
            4 => {
                if let Some(cancelled) = self.scheduler.cancel(id) {
                    let len = cancelled.tokens().len();
                    assert_eq!(cancelled.tokens(), &true_tokens(&cancelled)[..len], "what was read is kept");
                    assert!(self.scheduler.num_free_blocks() >= num_free);
                    assert_eq!(self.scheduler.cancel(id).map(|again| again.id()), None);
                }
            }
            _ if self.scheduler.is_idle() && self.launched.is_empty() => {}
            _ => self.step(stop_after),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_history_of_commands_keeps_every_row_on_its_own_tokens_and_frees_every_block(
        shapes in prop::collection::vec((1usize..20, 1u64..4, 1usize..16, any::<bool>()), 1..6),
        commands in prop::collection::vec((0u8..10, 0usize..6, 0usize..4), 0..60),
        block_size in 1usize..6,
        max_num_seqs in 1usize..6,
        max_num_batched_tokens in 1usize..40,
        spare_blocks in 0u32..16,
        stop_seed in 1usize..50,
        is_ahead in any::<bool>(),
    ) {
        let requests: Vec<SequenceRequest> = shapes
            .iter()
            .map(|&(prompt, samples, new, keep_open)| {
                SequenceRequest { keep_open, ..request(prompt, samples, new) }
            })
            .collect();
        let longest = requests.iter().map(|r| r.max_blocks(block_size)).max().unwrap_or(0);
        let num_blocks = longest as u32 + spare_blocks;
        let limits = SchedulerConfig { num_blocks, block_size, max_num_seqs, max_num_batched_tokens };
        let stop_after = |s: &Sequence| 1 + (s.request_idx * 13 + s.sample_idx * 5 + stop_seed) % 24;
        let mut simulation = Simulation { is_ahead, ..Simulation::new(limits, &[]) };
        let mut waiting = requests.iter().enumerate();
        for (idx, &(command, request_idx, sample_idx)) in commands.iter().enumerate() {
            if idx.is_multiple_of(8)
                && let Some((request_idx, request)) = waiting.next()
            {
                simulation.scheduler.add(request_idx, request).unwrap();
            }
            let request_idx = request_idx % requests.len();
            let sample_idx = sample_idx % requests[request_idx].seeds.len();
            simulation.apply(command, id(request_idx, sample_idx), &stop_after);
        }
        waiting.for_each(|(request_idx, request)| simulation.scheduler.add(request_idx, request).unwrap());
        let all: Vec<SequenceId> = requests
            .iter()
            .enumerate()
            .flat_map(|(request_idx, request)| (0..request.seeds.len()).map(move |sample| id(request_idx, sample)))
            .collect();
        for &id in &all {
            let _ = simulation.scheduler.resume(id);
        }
        let mut simulation = simulation.run(&stop_after);
        for &id in &all {
            if let Some(sequence) = simulation.scheduler.cancel(id) {
                prop_assert!(sequence.is_turn_over(), "everything that was resumed has ended");
                prop_assert!(requests[id.request_idx].keep_open);
            }
        }
        prop_assert_eq!(simulation.scheduler.num_idle(), 0);
        prop_assert_eq!(simulation.scheduler.num_free_blocks(), num_blocks as usize);
        for (&(request_idx, sample_idx), completion) in &simulation.finished {
            let wanted = 1 + (request_idx * 13 + sample_idx * 5 + stop_seed) % 24;
            prop_assert!(completion.len() <= wanted);
            prop_assert!(!completion.is_empty());
        }
    }
}

#[test]
fn a_paused_sequence_keeps_its_blocks_and_prefills_nothing_when_it_resumes() {
    for is_ahead in [false, true] {
        let mut simulation =
            Simulation { is_ahead, ..Simulation::new(limits(64, 4, 8), &[request(6, 2, 9)]) };
        (0..3).for_each(|_| simulation.step(&|_| 9));
        simulation.pause(id(0, 0)).unwrap();
        let blocks = |simulation: &Simulation| {
            let sequence = simulation.scheduler.find(id(0, 0)).unwrap();
            sequence.block_table().collect::<Vec<u32>>()
        };
        let kept = blocks(&simulation);
        assert!(!kept.is_empty());
        (0..2).for_each(|_| simulation.step(&|_| 9));
        assert_eq!(blocks(&simulation), kept);
        assert_eq!(simulation.scheduler.running().len(), 1, "the other sample goes on");
        simulation.scheduler.resume(id(0, 0)).unwrap();
        let done = simulation.run(&|_| 9);
        assert_eq!(done.scheduler.stats().prefilled_tokens, 5, "the shared prompt, once");
        assert_eq!(done.finished.len(), 2);
        assert_eq!(done.scheduler.num_free_blocks(), 64);
    }
}

#[test]
fn an_extended_sequence_prefills_only_what_its_cache_lacks() {
    for is_ahead in [false, true] {
        let mut simulation =
            Simulation { is_ahead, ..Simulation::new(limits(64, 4, 8), &[open(request(6, 1, 9))]) };
        simulation = simulation.run(&|_| 4);
        assert_eq!(simulation.scheduler.num_idle(), 1);
        assert!(simulation.scheduler.num_free_blocks() < 64);
        simulation.extend(id(0, 0), 3, 5).unwrap();
        simulation = simulation.run(&|_| 9);
        let turn = &simulation.finished[&(0, 0)];
        assert_eq!(turn.len(), 5, "the limit of the second turn");
        // First all prompt tokens but the last; after the extension the last sampled token and all new tokens
        // but the last.
        assert_eq!(simulation.scheduler.stats().prefilled_tokens, 5 + 3);
    }
}

/// An idle sequence has 2 of 6 blocks, and another one grows to 5.
#[test]
fn an_idle_sequence_gives_up_its_blocks_before_a_running_one_is_preempted() {
    let requests = [open(request(6, 1, 3)), request(4, 1, 16)];
    let mut done = Simulation::new(limits(6, 4, 2), &requests).run(&|_| 24);
    assert_eq!(done.scheduler.stats().preemptions, 0);
    let idle = done.scheduler.find(id(0, 0)).unwrap();
    assert_eq!((idle.tokens().len(), idle.block_table().len()), (9, 0));
    done.extend(id(0, 0), 2, 4).unwrap();
    let done = done.run(&|_| 24);
    assert_eq!(done.finished[&(0, 0)].len(), 4, "it is computed again from its tokens");
    assert_eq!(done.scheduler.stats().prefilled_tokens, 5 + 3 + 10);
}

#[test]
fn a_cancelled_sequence_frees_its_blocks_and_changes_no_other() {
    for is_ahead in [false, true] {
        let requests = [request(7, 3, 9), request(5, 1, 9)];
        let simulation = || Simulation { is_ahead, ..Simulation::new(limits(64, 4, 3), &requests) };
        let undisturbed = simulation().run(&|_| 9).finished;
        // A running sequence, and one that has not begun.
        for cancelled in [id(0, 1), id(1, 0)] {
            let mut simulation = simulation();
            (0..3).for_each(|_| simulation.step(&|_| 9));
            let num_free = simulation.scheduler.num_free_blocks();
            let sequence = simulation.scheduler.cancel(cancelled).unwrap();
            assert_eq!(sequence.block_table().len(), 0);
            assert_eq!(simulation.scheduler.num_free_blocks() > num_free, cancelled == id(0, 1));
            let done = simulation.run(&|_| 9);
            assert_eq!(done.finished.len(), 3);
            for (key, completion) in &done.finished {
                assert_eq!(completion, &undisturbed[key]);
            }
            assert_eq!(done.scheduler.num_free_blocks(), 64);
        }
    }
}

#[test]
fn commands_to_a_sequence_in_another_state_are_refused() {
    let mut scheduler = Scheduler::new(limits(8, 4, 2)).unwrap();
    scheduler.add(0, &open(request(3, 1, 9))).unwrap();
    scheduler.add(1, &request(3, 1, 9)).unwrap();
    let (known, never) = (id(0, 0), id(5, 0));
    let unknown = SchedulerError::UnknownSequence { id: never };
    assert_eq!(scheduler.pause(never), Err(SchedulerError::UnknownSequence { id: never }));
    assert_eq!(scheduler.resume(never), Err(SchedulerError::UnknownSequence { id: never }));
    assert_eq!(scheduler.extend(never, &[1], 1), Err(unknown));
    assert!(scheduler.cancel(never).is_none());
    assert_eq!(scheduler.extend(known, &[1], 1), Err(SchedulerError::TurnNotOver { id: known }));
    scheduler.schedule();
    scheduler.launch();
    assert_eq!(scheduler.pause(known), Err(SchedulerError::InFlight { id: known }));
    assert_eq!(scheduler.commit(&[(1, true), (1, true)]).len(), 2);
    assert_eq!(scheduler.resume(known), Err(SchedulerError::TurnOver { id: known }));
    assert_eq!(scheduler.pause(id(1, 0)), Err(SchedulerError::UnknownSequence { id: id(1, 0) }));
    assert_eq!(scheduler.extend(known, &[1], 0), Err(SchedulerError::NoNewTokens { request_idx: 0 }));
    let too_long = SchedulerError::TooLong { request_idx: 0, needed: 9, num_blocks: 8 };
    assert_eq!(scheduler.extend(known, &[1], 29), Err(too_long));
    assert_eq!(scheduler.extend(known, &[1], 28), Ok(()), "32 tokens in the cache, the 33rd is never fed");
    assert_eq!(scheduler.pause(known), Ok(()));
    assert_eq!(scheduler.resume(known), Ok(()));
    assert_eq!(scheduler.resume(known), Ok(()), "it waits already");
}
