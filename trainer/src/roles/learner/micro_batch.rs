//! A micro-batch as tensors: packed sequences, and the positions that predict completion tokens.
//!
//! ```text
//! rows of one group     prompt | completion 1 | completion 2 | ...   each continues the prompt's segment
//! a single row          prompt and completion
//! ```
//! The last token of a completion is left out, because nothing is predicted from it.
//!
//! Ranks of a sequence-parallel group pack the same tokens, and each keeps its shard of them. A target is
//! kept with the token that predicts it, even if the target token itself is in the next rank's shard.
//!
//! Legend of shapes: t packed tokens, or those of this rank's shard, c completion tokens that
//! are predicted from them.

use std::ops::Range;
use std::sync::Arc;

use rlt_core::batch::Batch;
use rlt_core::packing::{PackedLayout, PackingError, Segment, pack_groups};
use rlt_core::rows::Rows;
use rlt_core::types::TokenId;
use rlt_decoder::{Decoder, PackedInput};
use rlt_layout::AxisPlace;
use rlt_parallel::Ranks;
use tch::Tensor;

use super::image_placement::ImagePlacement;

/// Rows of a batch, packed into one row of tokens. Adjacent rows of one rollout group share their prompt.
#[derive(Debug)]
pub struct MicroBatch {
    /// Packed tokens, or this rank's shard of them.
    pub input: PackedInput,
    /// Position among the t tokens whose hidden state predicts each completion token, i64 `[c]`: the one
    /// before it. The last position of a shared prompt predicts the first token of every completion.
    pub predictors_c: Tensor,
    /// Ids of the completion tokens, `c` of them, in the order of the rows.
    pub targets: Vec<i64>,
    /// `targets` on the device of the loss head, i64 `[c]`.
    pub targets_c: Tensor,
    /// Indices of `targets` among the completion tokens of all rows.
    pub(crate) predicted: PredictedTokens,
    /// The range of each row's completion among the completion tokens of all rows.
    pub rows: Rows,
    /// The rows' indices in the batch.
    pub row_idxs: Vec<usize>,
}

impl MicroBatch {
    /// Packs this rank's share of the rows `row_idxs` of `batch` into micro-batches, see [`Self::split`].
    ///
    /// # Errors
    /// If a sequence alone is longer than a micro-batch may be, or the tokens of a prompt do not fit its
    /// images.
    pub fn share(
        batch: &Batch,
        row_idxs: &[usize],
        decoder: &Decoder,
        max_tokens: usize,
        ranks: &Ranks,
    ) -> Result<Vec<Self>, PackingError> {
        let own = ranks.share_of(batch, row_idxs, decoder.config.hidden_size);
        Self::split(batch, &own, decoder, max_tokens, ranks.sp_place())
    }

    /// Packs the rows `row_idxs` of `batch` into micro-batches for `decoder`, of which this rank computes the
    /// shard `part`. A shard has at most `max_tokens` tokens, a micro-batch that many for each rank of the
    /// sequence-parallel group.
    ///
    /// # Errors
    /// As [`Self::share`].
    pub fn split(
        batch: &Batch,
        row_idxs: &[usize],
        decoder: &Decoder,
        max_tokens: usize,
        part: AxisPlace,
    ) -> Result<Vec<Self>, PackingError> {
        let groups = batch.prompt_groups(row_idxs);
        let max_tokens = max_tokens.saturating_mul(part.size);
        let packing = pack_groups(&groups, max_tokens, decoder.config.hidden_size)?;
        let rows_of =
            |places: Vec<usize>| places.into_iter().map(|place| row_idxs[place]).collect::<Vec<_>>();
        let micro_batches = packing.micro_batches.into_iter().map(rows_of);
        micro_batches.map(|rows| Self::new_shard(batch, &rows, part, decoder)).collect()
    }

    /// Packs the rows `row_idxs` of `batch` in that order, for `decoder`.
    ///
    /// # Errors
    /// If the tokens of a prompt do not fit its images.
    pub fn new(batch: &Batch, row_idxs: &[usize], decoder: &Decoder) -> Result<Self, PackingError> {
        Self::new_shard(batch, row_idxs, AxisPlace::ALONE, decoder)
    }

    /// Packs the rows into a micro-batch of which this rank computes the shard `part`.
    fn new_shard(
        batch: &Batch,
        row_idxs: &[usize],
        part: AxisPlace,
        decoder: &Decoder,
    ) -> Result<Self, PackingError> {
        let mut packed = PackedTokens::default();
        let mut placed = decoder.config.vision.as_ref().map(ImagePlacement::new);
        for rows in batch.group_runs(row_idxs) {
            let prompt = &batch.sequences[rows[0]].prompt;
            let behind = rows.iter().map(|row| batch.sequences[*row].predicting_completion().len());
            let placing = placed.as_mut().map(|placed| placed.push(prompt, behind));
            let failed = |source| PackingError::Images { sample_idx: rows[0], source };
            placing.transpose().map_err(failed)?;
            packed.push_group(batch, rows);
        }
        let own = part.padded_range(packed.tokens.len());
        let targets = row_idxs.iter().flat_map(|row_idx| &batch.sequences[*row_idx].completion);
        let predictions = packed.predictors.iter().zip(targets).enumerate();
        let (mut predictors, mut targets, mut predicted) = (Vec::new(), Vec::new(), Vec::new());
        for (place, (predictor, target)) in predictions.filter(|(_, (predictor, _))| own.contains(predictor))
        {
            predictors.push((predictor - own.start) as i64);
            targets.push(i64::from(*target));
            predicted.push(place);
        }
        let layout = PackedLayout::of(packed.segments);
        let arrays = [predictors.as_slice(), &targets];
        let (input, [predictors_c, targets_c]) =
            PackedInput::shard_with_arrays(arrays, &packed.tokens, layout, part, decoder.device());
        Ok(Self {
            input: match placed {
                Some(placed) => placed.add_to(input),
                None => input,
            },
            predictors_c,
            targets,
            targets_c,
            predicted: PredictedTokens(predicted.into()),
            rows: batch.micro_rows(row_idxs),
            row_idxs: row_idxs.to_vec(),
        })
    }

    /// Scatters the values of the c tokens to all completion tokens of the micro-batch; 0 for tokens of other
    /// sequence-parallel ranks.
    pub fn spread(&self, per_token: &[f32]) -> Vec<f64> {
        self.predicted.spread(per_token, self.rows.num_tokens())
    }

    /// Selects the values of the c tokens from one value for each completion token of all rows.
    pub fn local_values(&self, per_token: &[f64]) -> Vec<f64> {
        self.predicted.local_values(per_token)
    }
}

/// Indices of predicted tokens among the completion tokens of all rows, ascending: all of them, or those of
/// this rank's shard.
#[derive(Clone, Debug)]
pub(crate) struct PredictedTokens(Arc<[usize]>);

impl PredictedTokens {
    /// Scatters values to all `num_tokens` completion tokens, see [`MicroBatch::spread`].
    pub(crate) fn spread(&self, per_token: &[f32], num_tokens: usize) -> Vec<f64> {
        let mut all = vec![0.0; num_tokens];
        for (place, number) in self.0.iter().zip(per_token) {
            all[*place] = f64::from(*number);
        }
        all
    }

    /// Selects the values of the predicted tokens, see [`MicroBatch::local_values`].
    pub(crate) fn local_values(&self, per_token: &[f64]) -> Vec<f64> {
        self.0.iter().map(|place| per_token[*place]).collect()
    }

    /// Returns the row of each predicted token, and its index among that row's completion tokens.
    pub(crate) fn in_rows<'a>(&'a self, rows: &'a Rows) -> impl Iterator<Item = (usize, usize)> + 'a {
        let mut row = 0;
        self.0.iter().map(move |place| {
            while rows.range(row).end <= *place {
                row += 1;
            }
            (row, place - rows.range(row).start)
        })
    }

    /// Splits `chunk`, a range of the c tokens, into runs of tokens that are consecutive in the rows. Each is
    /// given by its range in the chunk, and its range among the completion tokens of all rows.
    pub(crate) fn stretches(
        &self,
        chunk: Range<usize>,
    ) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
        let mut start = 0;
        self.0[chunk].chunk_by(|one, next| one + 1 == *next).map(move |stretch| {
            let here = start..start + stretch.len();
            start = here.end;
            (here, stretch[0]..stretch[0] + stretch.len())
        })
    }
}

/// A packed row under construction.
#[derive(Default)]
struct PackedTokens {
    tokens: Vec<TokenId>,
    segments: Vec<Segment>,
    predictors: Vec<usize>,
}

impl PackedTokens {
    /// Appends rows with the same prompt.
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

    /// Appends a segment, and returns its range in the packed row.
    fn push(&mut self, tokens: &[TokenId], prefix: Option<usize>) -> Range<usize> {
        let start = self.tokens.len();
        self.tokens.extend_from_slice(tokens);
        self.segments.push(Segment { len: tokens.len(), prefix });
        start..self.tokens.len()
    }

    fn predict(&mut self, positions: Range<usize>) {
        self.predictors.extend(positions);
    }
}
