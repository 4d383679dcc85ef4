//! Assignment of sequences to rows of the batch on the device, and the changes between two steps.
//!
//! The state of a batch is one array of words (i32) on the device, laid out by [`BatchStateLayout`]. The
//! device advances every continuing row by one token. The host writes only what the device cannot derive:
//! rows that begin, move or end, and new blocks. This file uses no tensors.

use std::collections::{HashMap, HashSet};

use rlt_core::engine::Sequence;
use rlt_core::types::TokenId;
use rlt_torch::cuda::SAMPLING_ROW_WORDS;

/// Number of words (i32) of a row's sampling parameters.
const PARAMETER_WORDS: usize = 2 * SAMPLING_ROW_WORDS;

/// Sizes of the state's arrays, from which their offsets follow.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchStateLayout {
    pub(super) max_rows: usize,
    /// Number of blocks of the longest sequence.
    pub(super) max_blocks: usize,
    /// Number of words of a row's seen tokens, a bit for each token of the vocabulary; 0 if no request has a
    /// repetition penalty.
    pub(super) seen_words: usize,
    pub(super) block_size: usize,
    /// Number of layers with experts. For each of them a step writes a digest of every row's chosen experts.
    pub(super) route_layers: usize,
}

/// Arrays of the state with one word a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowArray {
    /// Input token of the next step.
    Token,
    /// Position of the input token; negative for an empty row. After an image it is smaller than the number
    /// of tokens before the input token.
    Position,
    /// Cache slot of the input token's keys and values.
    Slot,
    /// Number of tokens to which the input token attends.
    ContextLen,
    /// Number of tokens of the completion so far; negative for an empty row.
    Step,
}

impl BatchStateLayout {
    /// Offset of an array with one word a row. Parameters come first, because they are read in pairs of
    /// words.
    pub(super) fn start_of(&self, array: RowArray) -> usize {
        self.max_rows * (PARAMETER_WORDS + array as usize)
    }

    /// Offset of the block tables `[max_rows, max_blocks]`.
    pub(super) fn tables(&self) -> usize {
        self.max_rows * (PARAMETER_WORDS + 5)
    }

    /// Offset of the seen tokens `[max_rows, seen_words]`.
    pub(super) fn seen_tokens(&self) -> usize {
        self.tables() + self.max_rows * self.max_blocks
    }

    /// Offset of the words that the host reads after a step: sampled tokens, the bits of their log-probs, a
    /// word that is not 0 once this rank wants to stop, and for each layer with experts a digest of each
    /// row's chosen experts.
    pub(super) fn drawn(&self) -> usize {
        self.seen_tokens() + self.max_rows * self.seen_words
    }

    pub(super) fn num_drawn_words(&self) -> usize {
        self.routes() + self.route_layers * self.max_rows
    }

    /// Index, relative to [`Self::drawn`], of the word by which a rank requests a stop.
    pub(super) fn end_word(&self) -> usize {
        2 * self.max_rows
    }

    /// Index, relative to [`Self::drawn`], of the digests `[route_layers, max_rows]`.
    pub(super) fn routes(&self) -> usize {
        self.end_word() + 1
    }

    pub(super) fn num_words(&self) -> usize {
        self.drawn() + self.num_drawn_words()
    }

    /// Maximum length of a step's changes in words: their number, and an offset and a value for every word of
    /// the state.
    pub(super) fn max_change_words(&self) -> usize {
        1 + 2 * self.num_words()
    }

    /// Number of rows that a step of `num_running` sequences computes: the next power of two, at most
    /// `max_rows`.
    pub(super) fn bucket(&self, num_running: usize) -> usize {
        num_running.next_power_of_two().min(self.max_rows)
    }
}

/// Changes of the state, as [`rlt_torch::cuda::ApplyUpdates`] takes them.
#[derive(Debug)]
pub(super) struct StateUpdates {
    words: Vec<i32>,
}

impl StateUpdates {
    fn new() -> Self {
        Self { words: vec![0] }
    }

    fn write(&mut self, at: usize, value: i32) {
        self.words[0] += 1;
        self.words.extend([at as i32, value]);
    }

    fn copy(&mut self, at: usize, from: usize) {
        self.words[0] += 1;
        self.words.extend([-1 - at as i32, from as i32]);
    }

    /// Requests the end of the run: this step's results tell all ranks that this rank wants to stop.
    pub(super) fn ask_for_end(&mut self, layout: &BatchStateLayout) {
        self.write(layout.drawn() + layout.end_word(), 1);
    }

    pub(super) fn words(&self) -> &[i32] {
        &self.words
    }
}

/// The sequence in a row.
#[derive(Clone, Copy, Debug)]
struct RowSequence {
    /// Number of the sequence's admission by the scheduler. A preempted sequence is admitted again under
    /// another number, and gets another row.
    admission: u64,
    num_blocks: usize,
}

/// Rows of the batch as they are on the device once the pending changes are applied.
#[derive(Debug)]
pub(super) struct BatchState {
    layout: BatchStateLayout,
    rows: Vec<Option<RowSequence>>,
    /// Row of each sequence, by its admission.
    row_of: HashMap<u64, usize>,
}

/// Settings of a row that follow from the request of its sequence.
#[derive(Clone, Copy, Debug)]
pub(super) struct OfRequest {
    /// Sampling parameters, as words.
    pub(super) sampling: [i64; SAMPLING_ROW_WORDS],
    /// Difference between the position of a token and the number of tokens before it.
    pub(super) position_offset: i64,
}

/// Source of a row's input token.
enum InputToken {
    Known(TokenId),
    /// The token is only on the device, in another row.
    In(usize),
}

impl BatchState {
    pub(super) fn new(layout: BatchStateLayout) -> Self {
        Self { layout, rows: vec![None; layout.max_rows], row_of: HashMap::new() }
    }

    /// The row of each sequence in `running`.
    pub(super) fn rows_of(&self, running: &[Sequence]) -> Vec<usize> {
        running.iter().map(|sequence| self.row_of[&sequence.admission()]).collect()
    }

    /// Assigns the lowest rows to the sequences `running`, and returns the changes of the state.
    pub(super) fn follow(
        &mut self,
        running: &[Sequence],
        of_request: &dyn Fn(&Sequence) -> OfRequest,
    ) -> StateUpdates {
        let mut changes = StateUpdates::new();
        let mut cleared = self.vacate(running);
        let bucket = self.layout.bucket(running.len());
        let mut free = (0..bucket).filter(|&row| self.rows[row].is_none()).collect::<Vec<_>>().into_iter();
        for sequence in running {
            let before = self.row_of.get(&sequence.admission()).copied();
            if let Some(row) = before.filter(|&row| row < bucket) {
                self.append_blocks(row, sequence, &mut changes);
                continue;
            }
            // There are at most as many sequences as rows of the bucket.
            let Some(row) = free.next() else { continue };
            let fed = before.map_or(InputToken::Known(sequence.last_token()), InputToken::In);
            if let Some(before) = before {
                self.rows[before] = None;
                cleared.insert(before);
            }
            cleared.remove(&row);
            self.occupy(row, sequence, fed, of_request(sequence), &mut changes);
        }
        for row in cleared {
            self.clear(row, &mut changes);
        }
        changes
    }

    /// Frees the rows of sequences that no longer run.
    fn vacate(&mut self, running: &[Sequence]) -> HashSet<usize> {
        let running: HashSet<_> = running.iter().map(Sequence::admission).collect();
        let gone =
            |occupant: &Option<RowSequence>| occupant.is_some_and(|one| !running.contains(&one.admission));
        let rows: HashSet<usize> = (0..self.rows.len()).filter(|&row| gone(&self.rows[row])).collect();
        for &row in &rows {
            if let Some(occupant) = self.rows[row].take() {
                self.row_of.remove(&occupant.admission);
            }
        }
        rows
    }

    fn at(&self, array: RowArray, row: usize) -> usize {
        self.layout.start_of(array) + row
    }

    fn occupy(
        &mut self,
        row: usize,
        sequence: &Sequence,
        fed: InputToken,
        of_request: OfRequest,
        changes: &mut StateUpdates,
    ) {
        let layout = self.layout;
        match fed {
            InputToken::Known(token) => changes.write(self.at(RowArray::Token, row), token as i32),
            InputToken::In(other) => {
                changes.copy(self.at(RowArray::Token, row), self.at(RowArray::Token, other))
            }
        }
        let num_before = sequence.last_position() as i32;
        let position = num_before + of_request.position_offset as i32;
        changes.write(self.at(RowArray::Position, row), position);
        changes.write(self.at(RowArray::Slot, row), sequence.last_slot(layout.block_size) as i32);
        changes.write(self.at(RowArray::ContextLen, row), num_before + 1);
        changes.write(self.at(RowArray::Step, row), sequence.completion().len() as i32);
        for (idx, word) in of_request.sampling.into_iter().enumerate() {
            let at = row * PARAMETER_WORDS + 2 * idx;
            changes.write(at, word as i32);
            changes.write(at + 1, (word >> 32) as i32);
        }
        for (idx, block) in sequence.block_table().enumerate() {
            changes.write(layout.tables() + row * layout.max_blocks + idx, block as i32);
        }
        let seen = |row: usize| layout.seen_tokens() + row * layout.seen_words;
        match fed {
            InputToken::In(other) => {
                (0..layout.seen_words).for_each(|word| changes.copy(seen(row) + word, seen(other) + word))
            }
            InputToken::Known(_) => {
                let words = seen_words(sequence.tokens(), layout.seen_words);
                words.into_iter().enumerate().for_each(|(idx, word)| changes.write(seen(row) + idx, word));
            }
        }
        let num_blocks = sequence.block_table().len();
        self.rows[row] = Some(RowSequence { admission: sequence.admission(), num_blocks });
        self.row_of.insert(sequence.admission(), row);
    }

    /// Writes the cache blocks that the sequence got since the last step and, if there are any, the slot of
    /// its last token.
    fn append_blocks(&mut self, row: usize, sequence: &Sequence, changes: &mut StateUpdates) {
        let layout = self.layout;
        let slot = self.at(RowArray::Slot, row);
        let Some(occupant) = &mut self.rows[row] else { return };
        let known = std::mem::replace(&mut occupant.num_blocks, sequence.block_table().len());
        for (idx, block) in sequence.block_table().enumerate().skip(known) {
            changes.write(layout.tables() + row * layout.max_blocks + idx, block as i32);
        }
        if sequence.block_table().len() > known {
            changes.write(slot, sequence.last_slot(layout.block_size) as i32);
        }
    }

    /// Empties a row: kernels skip rows with these values.
    fn clear(&self, row: usize, changes: &mut StateUpdates) {
        for (array, value) in
            [(RowArray::Position, -1), (RowArray::Slot, -1), (RowArray::ContextLen, 0), (RowArray::Step, -1)]
        {
            changes.write(self.at(array, row), value);
        }
    }

    /// The state in which all rows are empty.
    pub(super) fn empty_state(&self) -> Vec<i32> {
        let mut state = vec![0; self.layout.num_words()];
        let mut changes = StateUpdates::new();
        (0..self.layout.max_rows).for_each(|row| self.clear(row, &mut changes));
        for pair in changes.words[1..].chunks_exact(2) {
            state[pair[0] as usize] = pair[1];
        }
        state
    }
}

/// A bit set of the tokens that occur, 32 tokens a word.
fn seen_words(tokens: &[TokenId], num_words: usize) -> Vec<i32> {
    let mut words = vec![0u32; num_words];
    for &token in tokens {
        if let Some(word) = words.get_mut(token as usize / 32) {
            *word |= 1 << (token % 32);
        }
    }
    words.into_iter().map(|word| word as i32).collect()
}

#[cfg(test)]
mod tests;
