//! Sampling of the next tokens on the device, equal to `rlt_core::sampling`, in three kernel launches.

use super::kernels::Kernels;
use super::module::Shape;
use crate::Error;
use std::ffi::c_void;
use tch::{Kind, Tensor};

/// Number of words (i64) of a [`SamplingRow`] on the device.
pub const SAMPLING_ROW_WORDS: usize = 5;
/// Number of logits per block of the first launch.
const PART: i64 = 8192;
/// Number of floats that the first launch writes per block: maximum and sum of both distributions, and the
/// largest penalised logit with its index.
const PART_FLOATS: i64 = 6;
/// Number of tokens whose weights are summed together in the search for the drawn token.
const CHUNK: i64 = 256;
/// Largest number of banned tokens of a launch.
const MAX_BANNED: usize = 4;

/// Sampling parameters of one row, with the meaning of `rlt_core::sampling`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplingRow {
    /// Seed of the sample, which determines the draw together with the row's step.
    pub seed: u64,
    /// Repetition penalty; 1 for none.
    pub repetition_penalty: f64,
    /// Fraction of the probability to draw from; 1 means all.
    pub top_p: f64,
    /// Smallest probability relative to the most probable token; 0 means no bound.
    pub min_p: f64,
    /// Divisor of the logits; 0 takes the most probable token.
    pub temperature: f32,
    /// Number of most probable tokens to draw from; 0 means all.
    pub top_k: u32,
}

impl SamplingRow {
    /// Encodes the parameters for the device, as a row of an i64 tensor.
    pub fn words(&self) -> [i64; SAMPLING_ROW_WORDS] {
        let last = u64::from(self.temperature.to_bits()) | u64::from(self.top_k) << 32;
        let bits = |number: f64| number.to_bits() as i64;
        [self.seed as i64, bits(self.repetition_penalty), bits(self.top_p), bits(self.min_p), last as i64]
    }
}

/// Draws a token for each row: the same as `rlt_core::sampling` at `draw(seed, step)`, unless the draw is
/// within float noise of a boundary.
#[derive(Clone, Copy, Debug)]
pub struct Sample<'a> {
    /// Logits `[rows, vocabulary]`; f32, bf16 or f16.
    pub logits: &'a Tensor,
    /// Parameters of each row, i64 `[rows, SAMPLING_ROW_WORDS]`: [`SamplingRow::words`].
    pub params: &'a Tensor,
    /// Number of tokens in each row's completion so far, i32 `[rows]`; rows with a negative one are skipped.
    pub steps: &'a Tensor,
    /// Bit set of the tokens that occurred, i32 `[rows, ceil(vocabulary / 32)]`
    /// ([`MarkSeen`](super::MarkSeen)); the drawn token's bit is set. `None` if no row has a penalty.
    pub seen_tokens: Option<&'a Tensor>,
    /// Token ids that no row draws, at most four.
    pub banned: &'a [u32],
    /// Workspace, f32, at least [`sampling_workspace_bytes`] / 4 elements.
    pub workspace: &'a Tensor,
    /// Drawn tokens, i32 `[rows]`.
    pub tokens: &'a Tensor,
    /// Log-probs of the drawn tokens, f32 `[rows]`, under the untruncated, unpenalised distribution at the
    /// row's temperature (at 1 if that is 0). NaN if a row's logits contain a NaN or an infinity, or only
    /// minus infinities.
    pub logprobs: &'a Tensor,
}

#[repr(C)]
struct Arguments {
    logits: *const c_void,
    params: *const c_void,
    steps: *const c_void,
    seen: *mut c_void,
    parts: *mut c_void,
    chunk_sums: *mut c_void,
    probs: *mut c_void,
    tokens: *mut c_void,
    logprobs: *mut c_void,
    vocabulary: i64,
    num_parts: i32,
    num_chunks: i32,
    banned: [i32; MAX_BANNED],
}

/// Number of floats in each section of the workspace: sums of chunks (two floats each), statistics of blocks,
/// probabilities.
fn pieces(rows: i64, vocabulary: i64) -> [i64; 3] {
    let of = |size: i64| (vocabulary + size - 1) / size;
    [rows * of(CHUNK) * 2, rows * of(PART) * PART_FLOATS, rows * vocabulary]
}

/// Number of workspace bytes for launches of at most so many rows; most of them are the probabilities of rows
/// with top-k, top-p or min-p.
pub fn sampling_workspace_bytes(rows: usize, vocabulary: usize) -> usize {
    4 * pieces(rows as i64, vocabulary as i64).iter().sum::<i64>() as usize
}

impl Sample<'_> {
    /// Launches three kernels: statistics of all parts of all rows, their weights, and the draw with one
    /// block per row.
    ///
    /// # Errors
    /// When shapes, dtypes or devices do not fit, or the vocabulary has more than 2^20 tokens.
    pub fn launch(&self, kernels: &Kernels) -> Result<(), Error> {
        let operands = kernels.operands("sample");
        let kind = self.logits.kind();
        let [rows, vocabulary] = operands.sizes("logits", self.logits)?;
        operands.require(
            (1..=1 << 20).contains(&vocabulary),
            "a vocabulary from 1 to 1048576 tokens",
            vocabulary,
        )?;
        let num_banned = self.banned.len();
        operands.require(num_banned <= MAX_BANNED, "at most 4 banned tokens", num_banned)?;
        let words = (vocabulary + 31) / 32;
        let (num_parts, num_chunks) = ((vocabulary + PART - 1) / PART, (vocabulary + CHUNK - 1) / CHUNK);
        let [got] = operands.sizes("workspace", self.workspace)?;
        let pieces = pieces(rows, vocabulary);
        let least: i64 = pieces.iter().sum();
        let workspace = operands.address("workspace", self.workspace, Kind::Float, &[got])?;
        let behind = |floats: i64| workspace.wrapping_byte_add(4 * floats as usize);
        operands.require(got >= least, &format!("at least {least} floats of workspace"), got)?;
        let arguments = Arguments {
            logits: operands.address("logits", self.logits, kind, &[rows, vocabulary])?,
            params: operands.address(
                "params",
                self.params,
                Kind::Int64,
                &[rows, SAMPLING_ROW_WORDS as i64],
            )?,
            steps: operands.address("steps", self.steps, Kind::Int, &[rows])?,
            seen: operands.address_or_null("seen_tokens", self.seen_tokens, Kind::Int, &[rows, words])?,
            chunk_sums: workspace,
            parts: behind(pieces[0]),
            probs: behind(pieces[0] + pieces[1]),
            tokens: operands.address("tokens", self.tokens, Kind::Int, &[rows])?,
            logprobs: operands.address("logprobs", self.logprobs, Kind::Float, &[rows])?,
            vocabulary,
            num_parts: num_parts as i32,
            num_chunks: num_chunks as i32,
            banned: std::array::from_fn(|idx| self.banned.get(idx).map_or(-1, |token| *token as i32)),
        };
        let statistics = operands.kernel("sample_statistics", kind)?;
        let grid = [rows as usize, num_parts as usize, 1];
        kernels.launch(&statistics, Shape::blocks(grid, 256), &arguments)?;
        let weights = operands.kernel("sample_weights", kind)?;
        kernels.launch(&weights, Shape::blocks(grid, 256), &arguments)?;
        let draw = operands.kernel("sample_draw", kind)?;
        kernels.launch(&draw, Shape::blocks([rows as usize, 1, 1], 1024), &arguments)
    }
}
