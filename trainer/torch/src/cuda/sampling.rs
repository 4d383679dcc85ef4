//! The draw of the next tokens: `rlt_core::sampling` on the device, in three launches.

use super::kernels::Kernels;
use super::module::Shape;
use crate::Error;
use std::ffi::c_void;
use tch::{Kind, Tensor};

/// Words (i64) of a [`SamplingRow`] on the device.
pub const SAMPLING_ROW_WORDS: usize = 5;
/// Logits that one block of the first launch reads.
const PART: i64 = 8192;
/// Floats that the first launch leaves for each part: maximum and sum of both distributions, and the largest
/// penalised logit with its index.
const PART_FLOATS: i64 = 6;
/// Tokens whose weights are summed together on the way to the drawn one.
const CHUNK: i64 = 256;
/// Tokens that a launch can ban.
const MAX_BANNED: usize = 4;

/// How one row's token is drawn; the meaning of the numbers is that of `rlt_core::sampling`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplingRow {
    /// Of the sample; with the row's step it decides the draw.
    pub seed: u64,
    /// 1 does nothing.
    pub repetition_penalty: f64,
    /// 1 means all.
    pub top_p: f64,
    /// 0 means none.
    pub min_p: f64,
    /// 0 takes the most probable token.
    pub temperature: f32,
    /// 0 means all.
    pub top_k: u32,
}

impl SamplingRow {
    /// The row as it is on the device: a row of an i64 tensor.
    pub fn words(&self) -> [i64; SAMPLING_ROW_WORDS] {
        let last = u64::from(self.temperature.to_bits()) | u64::from(self.top_k) << 32;
        let bits = |number: f64| number.to_bits() as i64;
        [self.seed as i64, bits(self.repetition_penalty), bits(self.top_p), bits(self.min_p), last as i64]
    }
}

/// Draws a token for each row: the very draw of `rlt_core::sampling` at `draw(seed, step)`, equal unless the
/// draw is within float noise of a boundary.
#[derive(Clone, Copy, Debug)]
pub struct Sample<'a> {
    /// `[rows, vocabulary]`; f32, bf16 or f16.
    pub logits: &'a Tensor,
    /// i64 `[rows, SAMPLING_ROW_WORDS]`: [`SamplingRow::words`].
    pub params: &'a Tensor,
    /// i32 `[rows]`: tokens of the completion so far; negative: the row is left alone.
    pub steps: &'a Tensor,
    /// i32 `[rows, ceil(vocabulary / 32)]`, a bit for each token that occurred
    /// ([`MarkSeen`](super::MarkSeen)); the drawn token's is set. `None` where no row has a penalty.
    pub seen: Option<&'a Tensor>,
    /// Tokens that no row draws, at most four.
    pub banned: &'a [u32],
    /// f32, at least [`sampling_workspace_bytes`] / 4 numbers.
    pub workspace: &'a Tensor,
    /// i32 `[rows]`: the drawn tokens.
    pub tokens: &'a Tensor,
    /// f32 `[rows]`: their log-probs under the untruncated, unpenalised distribution at the row's temperature
    /// (at 1 when it is 0); NaN when the row's logits hold a NaN or an infinity, or nothing above minus
    /// infinity.
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

/// Floats of each piece of the workspace: sums of chunks (two floats each), statistics of parts,
/// probabilities.
fn pieces(rows: i64, vocabulary: i64) -> [i64; 3] {
    let of = |size: i64| (vocabulary + size - 1) / size;
    [rows * of(CHUNK) * 2, rows * of(PART) * PART_FLOATS, rows * vocabulary]
}

/// Bytes of workspace for launches of at most so many rows; most of it are the probabilities of rows with
/// top-k, top-p or min-p.
pub fn sampling_workspace_bytes(rows: usize, vocabulary: usize) -> usize {
    4 * pieces(rows as i64, vocabulary as i64).iter().sum::<i64>() as usize
}

impl Sample<'_> {
    /// Launches the statistics of all parts of all rows, their weights, then one block a row that draws.
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
            seen: operands.address_or_null("seen", self.seen, Kind::Int, &[rows, words])?,
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
