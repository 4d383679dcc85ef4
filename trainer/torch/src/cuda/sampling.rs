//! The draw of the next tokens: `rlt_core::sampling` on the device, in two launches.

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
    /// The row as it lies on the device: a row of an i64 tensor.
    pub fn words(&self) -> [i64; SAMPLING_ROW_WORDS] {
        let last = u64::from(self.temperature.to_bits()) | u64::from(self.top_k) << 32;
        let bits = |number: f64| number.to_bits() as i64;
        [self.seed as i64, bits(self.repetition_penalty), bits(self.top_p), bits(self.min_p), last as i64]
    }
}

/// Draws a token for each row: the very draw of `rlt_core::sampling` at `draw(seed, step)`, equal unless the
/// draw lies within float noise of a boundary.
#[derive(Clone, Copy, Debug)]
pub struct Sample<'a> {
    /// `[rows, vocabulary]`; f32, bf16 or f16.
    pub logits: &'a Tensor,
    /// i64 `[rows, SAMPLING_ROW_WORDS]`: [`SamplingRow::words`].
    pub params: &'a Tensor,
    /// i32 `[rows]`: tokens of the completion so far; negative: the row is left alone.
    pub steps: &'a Tensor,
    /// i32 `[rows, ceil(vocabulary / 32)]`, a bit for each token that occurred ([`MarkSeen`](super::MarkSeen));
    /// the drawn token's is set. `None` where no row has a penalty.
    pub seen: Option<&'a Tensor>,
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
    tokens: *mut c_void,
    logprobs: *mut c_void,
    vocabulary: i64,
    num_parts: i32,
}

/// Bytes of workspace for launches of at most so many rows.
pub fn sampling_workspace_bytes(rows: usize, vocabulary: usize) -> usize {
    4 * rows * vocabulary.div_ceil(PART as usize) * PART_FLOATS as usize
}

impl Sample<'_> {
    /// Launches the statistics of all parts of all rows, then one block a row that draws.
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
        let words = (vocabulary + 31) / 32;
        let num_parts = (vocabulary + PART - 1) / PART;
        let [got] = operands.sizes("workspace", self.workspace)?;
        let least = rows * num_parts * PART_FLOATS;
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
            parts: operands.address("workspace", self.workspace, Kind::Float, &[got])?,
            tokens: operands.address("tokens", self.tokens, Kind::Int, &[rows])?,
            logprobs: operands.address("logprobs", self.logprobs, Kind::Float, &[rows])?,
            vocabulary,
            num_parts: num_parts as i32,
        };
        let statistics = operands.kernel("sample_statistics", kind)?;
        let grid = [rows as usize, num_parts as usize, 1];
        kernels.launch(&statistics, Shape::blocks(grid, 256), &arguments)?;
        let draw = operands.kernel("sample_draw", kind)?;
        kernels.launch(&draw, Shape::blocks([rows as usize, 1, 1], 1024), &arguments)
    }
}
