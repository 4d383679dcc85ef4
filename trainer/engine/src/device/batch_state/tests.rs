//! Random loads on a device that is emulated by plain arrays. After the changes of each step, every row
//! agrees with its sequence.

use std::sync::Arc;

use proptest::prelude::*;
use rlt_core::engine::{Scheduler, SchedulerConfig, SequenceId, SequenceRequest};

use super::*;

/// The device's updates of its state, on the host.
struct Device {
    layout: BatchStateLayout,
    state: Vec<i32>,
}

impl Device {
    fn apply(&mut self, changes: &StateUpdates) {
        let (count, pairs) = changes.words().split_first().unwrap();
        assert_eq!(*count as usize * 2, pairs.len());
        assert!(changes.words().len() <= self.layout.max_change_words());
        let before = self.state.clone();
        let mut written = HashSet::new();
        for pair in pairs.chunks_exact(2) {
            let at = if pair[0] < 0 { -1 - pair[0] } else { pair[0] } as usize;
            assert!(written.insert(at), "word {at} is written once");
            self.state[at] = if pair[0] < 0 { before[pair[1] as usize] } else { pair[1] };
        }
        let copied = pairs.chunks_exact(2).filter(|pair| pair[0] < 0).map(|pair| pair[1] as usize);
        copied.for_each(|from| assert!(!written.contains(&from), "word {from} is copied and written"));
    }

    fn word(&self, array: RowArray, row: usize) -> i32 {
        self.state[self.layout.start_of(array) + row]
    }

    /// Does what the kernels do in a step: every row with a sequence gets `token` and advances by one.
    fn advance(&mut self, bucket: usize, token: impl Fn(usize) -> i32) {
        for row in 0..bucket {
            let position = self.word(RowArray::Position, row);
            if position < 0 {
                continue;
            }
            let next = self.word(RowArray::ContextLen, row) as usize;
            let table = self.layout.tables() + row * self.layout.max_blocks;
            let block = self.state[table..table + self.layout.max_blocks].get(next / self.layout.block_size);
            let slot = block.map_or(-1, |block| {
                block * self.layout.block_size as i32 + (next % self.layout.block_size) as i32
            });
            let step = self.word(RowArray::Step, row) + 1;
            for (array, value) in [
                (RowArray::Token, token(row)),
                (RowArray::Position, position + 1),
                (RowArray::Slot, slot),
                (RowArray::ContextLen, next as i32 + 1),
                (RowArray::Step, step),
            ] {
                let at = self.layout.start_of(array) + row;
                self.state[at] = value;
            }
        }
    }

    fn assert_row(&self, row: usize, sequence: &Sequence) {
        let layout = &self.layout;
        assert_eq!(self.word(RowArray::Token, row), true_token(sequence));
        let position = sequence.last_position() as i64 + offset(sequence);
        assert_eq!(i64::from(self.word(RowArray::Position, row)), position);
        assert_eq!(self.word(RowArray::Slot, row), sequence.last_slot(layout.block_size) as i32);
        assert_eq!(self.word(RowArray::ContextLen, row), sequence.last_position() as i32 + 1);
        assert_eq!(self.word(RowArray::Step, row), sequence.completion().len() as i32);
        let table = layout.tables() + row * layout.max_blocks;
        let blocks: Vec<i32> = sequence.block_table().map(|block| block as i32).collect();
        assert_eq!(self.state[table..table + blocks.len()], blocks);
        assert_eq!(self.state[row * PARAMETER_WORDS], sequence.seed as i32);
    }
}

/// Returns the last token, even if so far only the device has it.
fn true_token(sequence: &Sequence) -> i32 {
    let drawn = sequence.completion().len() as i32;
    if drawn == 0 { sequence.last_token() as i32 } else { drawn_token(sequence.id(), drawn) }
}

fn drawn_token(id: SequenceId, drawn: i32) -> i32 {
    (id.request_idx as i32 * 31 + id.sample_idx as i32 * 7 + drawn) % 64
}

/// Position offset of a sequence, as if some prompts had images.
fn offset(sequence: &Sequence) -> i64 {
    sequence.request_idx as i64 % 3
}

fn of_request(sequence: &Sequence) -> OfRequest {
    OfRequest { sampling: [sequence.seed as i64, 0, 0, 0, 0], position_offset: offset(sequence) }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_row_equals_its_sequence_while_rows_begin_move_and_end(
        shapes in prop::collection::vec((1usize..12, 1u64..5, 1usize..16), 1..7),
        block_size in 1usize..5,
        max_num_seqs in 1usize..9,
        spare_blocks in 0u32..10,
        stop_seed in 1usize..40,
    ) {
        let requests: Vec<SequenceRequest> = shapes
            .iter()
            .enumerate()
            .map(|(idx, &(prompt, samples, max_new_tokens))| SequenceRequest {
                prompt: (0..prompt as u32).map(|token| token + idx as u32).collect::<Arc<[u32]>>(),
                seeds: (0..samples).map(|sample| idx as u64 * 10 + sample).collect(),
                max_new_tokens,
                keep_open: false,
            })
            .collect();
        let max_blocks = requests.iter().map(|request| request.max_blocks(block_size)).max().unwrap_or(1);
        let num_blocks = max_blocks as u32 + spare_blocks;
        let limits = SchedulerConfig { num_blocks, block_size, max_num_seqs, max_num_batched_tokens: 16 };
        let mut scheduler = Scheduler::new(limits).unwrap();
        requests.iter().enumerate().for_each(|(idx, request)| scheduler.add(idx, request).unwrap());
        let layout = BatchStateLayout { max_rows: max_num_seqs, max_blocks, seen_words: 2, block_size, route_layers: 0 };
        let mut rows = BatchState::new(layout);
        let mut device = Device { layout, state: rows.empty_state() };
        let ends = |s: &Sequence| s.completion().len() >= (s.seed as usize * 5 + stop_seed) % 16;
        let mut unread: std::collections::VecDeque<Vec<(u32, bool)>> = Default::default();
        while !scheduler.is_idle() || scheduler.num_in_flight() > 0 {
            if !scheduler.is_idle() {
                scheduler.schedule();
                let running = scheduler.running();
                let changes = rows.follow(running, &of_request);
                device.apply(&changes);
                let bucket = layout.bucket(running.len());
                let of_running = rows.rows_of(running);
                for (sequence, &row) in running.iter().zip(&of_running) {
                    prop_assert!(row < bucket);
                    device.assert_row(row, sequence);
                }
                let active = (0..bucket).filter(|&row| device.word(RowArray::Position, row) >= 0).count();
                prop_assert_eq!(active, running.len(), "rows of no sequence are left alone");
                let tokens: HashMap<usize, i32> = running
                    .iter()
                    .zip(of_running)
                    .map(|(s, row)| (row, drawn_token(s.id(), s.completion().len() as i32 + 1)))
                    .collect();
                device.advance(bucket, |row| tokens[&row]);
                let drawn = running.iter().map(|s| {
                    let token = drawn_token(s.id(), s.completion().len() as i32 + 1);
                    (token as u32, s.is_at_last_token() || ends(s))
                });
                unread.push_back(drawn.collect());
                scheduler.launch();
            }
            if unread.len() > 1 || scheduler.is_idle() {
                let drawn = unread.pop_front().unwrap();
                scheduler.commit(&drawn);
            }
        }
    }
}

#[test]
fn the_seen_tokens_of_a_moved_row_move_with_it() {
    let limits =
        SchedulerConfig { num_blocks: 64, block_size: 4, max_num_seqs: 4, max_num_batched_tokens: 64 };
    let mut scheduler = Scheduler::new(limits).unwrap();
    let request = |token: u32| SequenceRequest {
        prompt: [token, token + 1].into(),
        seeds: vec![u64::from(token)],
        max_new_tokens: 9,
        keep_open: false,
    };
    let tokens = [3, 20, 40].into_iter().enumerate();
    tokens.for_each(|(idx, token)| scheduler.add(idx, &request(token)).unwrap());
    let layout =
        BatchStateLayout { max_rows: 4, max_blocks: 4, seen_words: 2, block_size: 4, route_layers: 2 };
    let mut rows = BatchState::new(layout);
    let mut device = Device { layout, state: rows.empty_state() };
    scheduler.schedule();
    device.apply(&rows.follow(scheduler.running(), &of_request));
    let third = rows.rows_of(scheduler.running())[2];
    let seen = |device: &Device, row: usize| {
        let first = layout.seen_tokens() + row * 2;
        device.state[first..first + 2].to_vec()
    };
    assert_eq!(seen(&device, third), [0, 3 << (40 - 32)]);
    scheduler.advance(&[(1, true), (1, true), (1, false)]);
    scheduler.schedule();
    // Stands for tokens that only the device has marked as seen in the meantime.
    device.state[layout.seen_tokens() + third * 2] = 77;
    device.apply(&rows.follow(scheduler.running(), &of_request));
    let moved = rows.rows_of(scheduler.running())[0];
    assert_eq!(moved, 0);
    assert_eq!(seen(&device, moved), [77, 3 << (40 - 32)]);
}

#[test]
fn a_sequence_that_is_extended_while_a_step_is_in_flight_gets_a_row_of_its_own_tokens() {
    let limits =
        SchedulerConfig { num_blocks: 64, block_size: 4, max_num_seqs: 2, max_num_batched_tokens: 64 };
    let mut scheduler = Scheduler::new(limits).unwrap();
    let request =
        SequenceRequest { prompt: [3, 4].into(), seeds: vec![7], max_new_tokens: 9, keep_open: true };
    scheduler.add(0, &request).unwrap();
    let layout =
        BatchStateLayout { max_rows: 2, max_blocks: 8, seen_words: 2, block_size: 4, route_layers: 0 };
    let mut rows = BatchState::new(layout);
    let mut device = Device { layout, state: rows.empty_state() };
    for _ in 0..2 {
        scheduler.schedule();
        device.apply(&rows.follow(scheduler.running(), &of_request));
        device.advance(1, |_| 50);
        scheduler.launch();
    }
    let ended = scheduler.commit(&[(50, true)]);
    scheduler.extend(ended[0].id(), &[11, 12], 5).unwrap();
    scheduler.schedule();
    device.apply(&rows.follow(scheduler.running(), &of_request));
    let sequence = &scheduler.running()[0];
    assert_eq!(sequence.tokens(), [3, 4, 50, 11, 12]);
    device.assert_row(rows.rows_of(scheduler.running())[0], sequence);
    scheduler.launch();
    assert!(scheduler.commit(&[(50, true)]).is_empty(), "the token of the step in flight is dropped");
}
