//! A micro-batch as tensors: packed sequences, and which positions predict which completion tokens.
//!
//! Legend of shapes: t tokens of the packed stream, c completion tokens of all rows.

use rlt_core::batch::Batch;
use rlt_core::rows::Rows;
use rlt_core::types::TokenId;
use tch::{Device, Tensor};

use crate::model::PackedInput;

/// Rows of a batch, packed into one stream of tokens.
#[derive(Debug)]
pub struct MicroBatch {
    /// The stream.
    pub input: PackedInput,
    /// Position in the stream whose hidden state predicts each completion token, i64 `[c]`: the one before it.
    pub predictors_c: Tensor,
    /// The completion tokens, `c` of them, in the order of the rows.
    pub targets: Vec<i64>,
    /// Where each row's completion lies among the `c` tokens.
    pub rows: Rows,
    /// The rows' places in the batch.
    pub row_idxs: Vec<usize>,
}

impl MicroBatch {
    /// Packs the rows `row_idxs` of `batch` in that order.
    pub fn new(batch: &Batch, row_idxs: &[usize], device: Device) -> Self {
        let sequences: Vec<Vec<TokenId>> =
            row_idxs.iter().map(|row_idx| batch.sequences[*row_idx].tokens()).collect();
        let slices: Vec<&[TokenId]> = sequences.iter().map(Vec::as_slice).collect();
        let mut predictors: Vec<i64> = Vec::new();
        let mut targets: Vec<i64> = Vec::new();
        let mut start = 0;
        for row_idx in row_idxs {
            let sequence = &batch.sequences[*row_idx];
            let first = start + sequence.prompt.tokens.len() - 1;
            predictors.extend((first..first + sequence.completion.len()).map(|position| position as i64));
            targets.extend(sequence.completion.iter().map(|token| i64::from(*token)));
            start += sequence.num_tokens();
        }
        Self {
            input: PackedInput::new(&slices, device),
            predictors_c: Tensor::from_slice(&predictors).to_device(device),
            targets,
            rows: batch.micro_rows(row_idxs),
            row_idxs: row_idxs.to_vec(),
        }
    }
}
