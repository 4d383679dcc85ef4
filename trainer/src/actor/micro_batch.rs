//! A micro-batch as tensors: packed sequences, and which positions predict which completion tokens.
//!
//! ```text
//! rows of one group     prompt | completion 1 | completion 2 | ...   a completion continues the prompt's segment
//! a row by itself       prompt and completion
//! ```
//! The last token of a completion is left out: nothing is predicted from it.
//!
//! Legend of shapes: t tokens of the packed stream, c completion tokens of all rows.

use std::ops::Range;

use rlt_core::batch::Batch;
use rlt_core::packing::{PackedLayout, PackingError, Segment, pack_groups};
use rlt_core::rows::Rows;
use rlt_core::types::TokenId;
use tch::{Device, Tensor};

use crate::model::{Decoder, PackedInput};

/// Rows of a batch, packed into one stream of tokens, the prompt of neighbours of one rollout group once.
#[derive(Debug)]
pub struct MicroBatch {
    /// The stream.
    pub input: PackedInput,
    /// Position in the stream whose hidden state predicts each completion token, i64 `[c]`: the one before it. The
    /// last position of a shared prompt predicts the first token of every completion.
    pub predictors_c: Tensor,
    /// The completion tokens, `c` of them, in the order of the rows.
    pub targets: Vec<i64>,
    /// Where each row's completion lies among the `c` tokens.
    pub rows: Rows,
    /// The rows' places in the batch.
    pub row_idxs: Vec<usize>,
}

impl MicroBatch {
    /// The rows `row_idxs` of `batch` in micro-batches of at most `max_tokens` tokens for `decoder`.
    ///
    /// # Errors
    /// When a sequence alone is longer than `max_tokens`.
    pub fn split(
        batch: &Batch,
        row_idxs: &[usize],
        decoder: &Decoder,
        max_tokens: usize,
    ) -> Result<Vec<Self>, PackingError> {
        let groups = batch.prompt_groups(row_idxs);
        let packing = pack_groups(&groups, max_tokens, decoder.config.hidden_size)?;
        let rows_of =
            |places: Vec<usize>| places.into_iter().map(|place| row_idxs[place]).collect::<Vec<_>>();
        let micro_batches = packing.micro_batches.into_iter().map(rows_of);
        Ok(micro_batches.map(|rows| Self::new(batch, &rows, decoder.device())).collect())
    }

    /// Packs the rows `row_idxs` of `batch` in that order.
    pub fn new(batch: &Batch, row_idxs: &[usize], device: Device) -> Self {
        let mut stream = Stream::default();
        for rows in batch.group_runs(row_idxs) {
            stream.push_group(batch, rows);
        }
        let layout = PackedLayout::of(stream.segments);
        let targets = row_idxs.iter().flat_map(|row_idx| &batch.sequences[*row_idx].completion);
        Self {
            input: PackedInput::from_layout(&stream.tokens, layout, device),
            predictors_c: Tensor::from_slice(&stream.predictors).to_device(device),
            targets: targets.map(|token| i64::from(*token)).collect(),
            rows: batch.micro_rows(row_idxs),
            row_idxs: row_idxs.to_vec(),
        }
    }
}

/// A stream as it grows.
#[derive(Default)]
struct Stream {
    tokens: Vec<TokenId>,
    segments: Vec<Segment>,
    predictors: Vec<i64>,
}

impl Stream {
    /// Appends rows that answer one prompt.
    fn push_group(&mut self, batch: &Batch, rows: &[usize]) {
        let prompt = &batch.sequences[rows[0]].prompt.tokens;
        if let [row] = rows {
            let sequence = &batch.sequences[*row];
            let start = self.push(&[prompt, sequence.predicting_completion()].concat(), None).start;
            let first = start + prompt.len() - 1;
            self.predict(first..first + sequence.completion.len());
            return;
        }
        let prefix = self.segments.len();
        let last_of_prompt = self.push(prompt, None).end - 1;
        for row in rows {
            let sequence = &batch.sequences[*row];
            let branch = self.push(sequence.predicting_completion(), Some(prefix));
            if !sequence.completion.is_empty() {
                self.predict(last_of_prompt..last_of_prompt + 1);
            }
            self.predict(branch);
        }
    }

    /// Appends a segment; its place in the stream.
    fn push(&mut self, tokens: &[TokenId], prefix: Option<usize>) -> Range<usize> {
        let start = self.tokens.len();
        self.tokens.extend_from_slice(tokens);
        self.segments.push(Segment { len: tokens.len(), prefix });
        start..self.tokens.len()
    }

    fn predict(&mut self, positions: Range<usize>) {
        self.predictors.extend(positions.map(|position| position as i64));
    }
}
