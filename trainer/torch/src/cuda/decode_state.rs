//! State of the batch between two decoding steps, on the device: input tokens, cache slots, and their update
//! by the tokens just drawn.

use super::kernels::Kernels;
use super::module::Shape;
use crate::Error;
use std::ffi::c_void;
use tch::{Kind, Tensor};

const THREADS: usize = 128;

/// Token embedding: `out[t] = embedding[tokens[t]] * scale`; zeros for a token outside the vocabulary.
#[derive(Clone, Copy, Debug)]
pub struct EmbedGather<'a> {
    /// Token ids, i32 `[tokens]`.
    pub tokens: &'a Tensor,
    /// Embedding matrix `[vocabulary, width]`; f32, bf16 or f16.
    pub embedding: &'a Tensor,
    /// Factor of the embeddings, rounded to the dtype by the caller (Gemma); 1 for none.
    pub scale: f64,
    /// Output `[tokens, width]` of the same dtype.
    pub out: &'a Tensor,
}

#[repr(C)]
struct EmbedArguments {
    tokens: *const c_void,
    embedding: *const c_void,
    out: *mut c_void,
    vocabulary: i64,
    width: i64,
    scale: f32,
}

impl EmbedGather<'_> {
    /// Launches one block per token.
    ///
    /// # Errors
    /// When shapes, dtypes or devices do not fit.
    pub fn launch(&self, kernels: &Kernels) -> Result<(), Error> {
        let operands = kernels.operands("embed_gather");
        let kind = self.embedding.kind();
        let [vocabulary, width] = operands.sizes("embedding", self.embedding)?;
        let [tokens] = operands.sizes("tokens", self.tokens)?;
        let arguments = EmbedArguments {
            tokens: operands.address("tokens", self.tokens, Kind::Int, &[tokens])?,
            embedding: operands.address("embedding", self.embedding, kind, &[vocabulary, width])?,
            out: operands.address("out", self.out, kind, &[tokens, width])?,
            vocabulary,
            width,
            scale: self.scale as f32,
        };
        let name = operands.kernel("embed_gather", kind)?;
        kernels.launch(&name, Shape::blocks([tokens as usize, 1, 1], THREADS as u32), &arguments)
    }
}

/// Makes the tokens just drawn the next step's input. Updates each row with a position of 0 or more: its
/// token, its position, its slot by the context length and the block table (-1 beyond the table), its context
/// length, and the number of its next draw. Other rows remain unchanged.
#[derive(Clone, Copy, Debug)]
pub struct Advance<'a> {
    /// Tokens that [`Sample`](super::Sample) drew, i32 `[rows]`.
    pub drawn: &'a Tensor,
    /// Blocks of each row's sequence in order, i32 `[rows, max_blocks]`.
    pub block_tables: &'a Tensor,
    /// Number of tokens in a block.
    pub block_size: usize,
    /// Input tokens of the next step, i32 `[rows]`.
    pub tokens: &'a Tensor,
    /// Positions of the input tokens, i32 `[rows]`; after images they are less than the number of tokens.
    pub positions: &'a Tensor,
    /// Cache slots for the keys and values of the input tokens, i32 `[rows]`.
    pub slots: &'a Tensor,
    /// Number of tokens of the sequence up to the input token, i32 `[rows]`.
    pub context_lens: &'a Tensor,
    /// Number of tokens of the completion so far, which is the number of the next draw, i32 `[rows]`.
    pub steps: &'a Tensor,
}

#[repr(C)]
struct AdvanceArguments {
    drawn: *const c_void,
    block_tables: *const c_void,
    tokens: *mut c_void,
    positions: *mut c_void,
    slots: *mut c_void,
    context_lens: *mut c_void,
    steps: *mut c_void,
    rows: i32,
    max_blocks: i32,
    block_size: i32,
}

impl Advance<'_> {
    /// Launches one thread per row.
    ///
    /// # Errors
    /// When shapes, dtypes or devices do not fit.
    pub fn launch(&self, kernels: &Kernels) -> Result<(), Error> {
        let operands = kernels.operands("advance");
        let [rows, max_blocks] = operands.sizes("block_tables", self.block_tables)?;
        operands.require(self.block_size > 0, "a block_size of at least 1", self.block_size)?;
        let row = |name, tensor| operands.address(name, tensor, Kind::Int, &[rows]);
        let arguments = AdvanceArguments {
            drawn: row("drawn", self.drawn)?,
            block_tables: operands.address(
                "block_tables",
                self.block_tables,
                Kind::Int,
                &[rows, max_blocks],
            )?,
            tokens: row("tokens", self.tokens)?,
            positions: row("positions", self.positions)?,
            slots: row("slots", self.slots)?,
            context_lens: row("context_lens", self.context_lens)?,
            steps: row("steps", self.steps)?,
            rows: rows as i32,
            max_blocks: max_blocks as i32,
            block_size: self.block_size as i32,
        };
        let blocks = (rows as usize).div_ceil(THREADS);
        kernels.launch("advance", Shape::blocks([blocks, 1, 1], THREADS as u32), &arguments)
    }
}

/// Marks tokens as seen, for the repetition penalty: sets bit `tokens[i] % 32` of word `tokens[i] / 32` of
/// row `rows[i]`. A negative row, or a token outside the vocabulary, marks nothing.
#[derive(Clone, Copy, Debug)]
pub struct MarkSeen<'a> {
    /// Token ids, i32 `[n]`.
    pub tokens: &'a Tensor,
    /// Row of each token, i32 `[n]`.
    pub rows: &'a Tensor,
    /// Bit set of seen tokens for each row, i32 `[rows, ceil(vocabulary / 32)]`.
    pub seen_tokens: &'a Tensor,
}

#[repr(C)]
struct MarkArguments {
    tokens: *const c_void,
    rows: *const c_void,
    seen: *mut c_void,
    count: i64,
    num_rows: i32,
    words: i32,
}

impl MarkSeen<'_> {
    /// Launches one thread per token.
    ///
    /// # Errors
    /// When shapes, dtypes or devices do not fit.
    pub fn launch(&self, kernels: &Kernels) -> Result<(), Error> {
        let operands = kernels.operands("mark_seen");
        let [num_rows, words] = operands.sizes("seen_tokens", self.seen_tokens)?;
        let [count] = operands.sizes("tokens", self.tokens)?;
        let arguments = MarkArguments {
            tokens: operands.address("tokens", self.tokens, Kind::Int, &[count])?,
            rows: operands.address("rows", self.rows, Kind::Int, &[count])?,
            seen: operands.address("seen_tokens", self.seen_tokens, Kind::Int, &[num_rows, words])?,
            count,
            num_rows: num_rows as i32,
            words: words as i32,
        };
        let blocks = (count as usize).div_ceil(THREADS);
        kernels.launch("mark_seen", Shape::blocks([blocks, 1, 1], THREADS as u32), &arguments)
    }
}
