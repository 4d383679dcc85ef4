//! Attention of single queries over a paged cache, as one kernel launch for any batch and lengths.

use super::kernels::Kernels;
use super::module::Shape;
use crate::Error;
use std::ffi::c_void;
use tch::{Kind, Tensor};

/// Number of threads in a block.
const THREADS: i64 = 128;
/// Largest number of query heads per block, for all of which each key is read once.
const GROUP_MAX: i64 = 8;
/// Bytes of keys and values in one of a block's two stages.
const STAGE_BYTES: i64 = 32 << 10;
/// Number of counters at the start of every workspace, one for each row and group of heads of a launch that
/// splits contexts. All launches reserve the same number, whatever their rows: otherwise the partial results
/// of a small launch would overwrite counters of a larger one, which must be zero when it begins.
const COUNTERS: i64 = 1 << 14;

/// The operation of [`paged_attention`](crate::paged_attention), with all that describes the batch on the
/// device. Several queries of one sequence (a prompt in chunks) are rows with the same table and ascending
/// lengths.
#[derive(Clone, Copy, Debug)]
pub struct PagedDecodeAttention<'a> {
    /// Queries `[rows, heads, head_dim]`; f32, bf16 or f16.
    pub q: &'a Tensor,
    /// Cached keys `[blocks, block_size, kv_heads, head_dim]` of the same dtype, where kv_heads divides
    /// heads.
    pub k_cache: &'a Tensor,
    /// Cached values, shaped like `k_cache`.
    pub v_cache: &'a Tensor,
    /// Blocks of each row's sequence in order, i32 `[rows, max_blocks]`. A block outside the cache is read as
    /// block 0.
    pub block_tables: &'a Tensor,
    /// Number of cached tokens that each row attends to, its own included, i32 `[rows]`. 0 or less writes
    /// zeros; more than the table can hold is truncated.
    pub context_lens: &'a Tensor,
    /// Factor of the queries.
    pub scale: f64,
    /// Sliding window: number of tokens that a query attends to, itself included; `None` means no limit.
    pub window: Option<i64>,
    /// Largest number of parts of a context, each computed by its own block: [`attention_splits`].
    pub splits: usize,
    /// Workspace, u8, at least [`attention_workspace_bytes`]; all zero before the first launch. Launches of
    /// different shapes may share it, one after the other.
    pub workspace: &'a Tensor,
    /// Output `[rows, heads, head_dim]` of the queries' dtype.
    pub out: &'a Tensor,
}

#[repr(C)]
struct Arguments {
    q: *const c_void,
    k_cache: *const c_void,
    v_cache: *const c_void,
    block_tables: *const c_void,
    context_lens: *const c_void,
    out: *mut c_void,
    partials: *mut c_void,
    counters: *mut c_void,
    num_blocks: i64,
    max_blocks: i32,
    block_size: i32,
    heads: i32,
    kv_heads: i32,
    head_dim: i32,
    window: i32,
    tile_keys: i32,
    scale: f32,
}

/// Number of parts into which contexts are split, so that `rows` x `kv_heads` fill a device of that many
/// multiprocessors (two blocks each); at most 64. The actual number for a context follows from its length.
pub fn attention_splits(rows: usize, kv_heads: usize, multiprocessors: usize) -> usize {
    (2 * multiprocessors).div_ceil((rows * kv_heads).max(1)).clamp(1, 64)
}

/// Number of head groups of a row; each is computed by its own block.
fn groups(heads: i64, kv_heads: i64) -> i64 {
    kv_heads * (heads / kv_heads).div_ceil_to(GROUP_MAX)
}

trait DivCeil {
    fn div_ceil_to(self, by: i64) -> i64;
}

impl DivCeil for i64 {
    fn div_ceil_to(self, by: i64) -> i64 {
        (self + by - 1) / by
    }
}

/// Number of workspace bytes for launches of at most so many rows and splits: the counters, then the partial
/// results.
pub fn attention_workspace_bytes(
    rows: usize,
    heads: usize,
    _kv_heads: usize,
    head_dim: usize,
    splits: usize,
) -> usize {
    let partials = if splits > 1 { rows * heads * splits * (head_dim + 2) } else { 0 };
    4 * (COUNTERS as usize + partials)
}

impl PagedDecodeAttention<'_> {
    /// Launches one block per row, group of heads and part of the context. The last block of a row and group
    /// combines the parts.
    ///
    /// # Errors
    /// When shapes, dtypes or devices do not fit, or head_dim is above 256 or not a multiple of 8.
    pub fn launch(&self, kernels: &Kernels) -> Result<(), Error> {
        let operands = kernels.operands("paged_decode_attention");
        let kind = self.q.kind();
        let [rows, heads, head_dim] = operands.sizes("q", self.q)?;
        let [blocks, block_size, kv_heads, _] = operands.sizes("k_cache", self.k_cache)?;
        let [_, max_blocks] = operands.sizes("block_tables", self.block_tables)?;
        operands.require(
            head_dim % 8 == 0 && head_dim <= 256,
            "head_dim a multiple of 8 up to 256",
            head_dim,
        )?;
        operands.require(heads % kv_heads.max(1) == 0, "kv_heads that divide heads", kv_heads)?;
        operands.require((1..=64).contains(&self.splits), "from 1 to 64 splits", self.splits)?;
        let sizes = [rows, heads, kv_heads, head_dim].map(|n| n as usize);
        let least = attention_workspace_bytes(sizes[0], sizes[1], sizes[2], sizes[3], self.splits);
        let got = self.workspace.numel();
        operands.require(got >= least, &format!("at least {least} bytes of workspace"), got)?;
        let cache = [blocks, block_size, kv_heads, head_dim];
        let query = [rows, heads, head_dim];
        let num_counters = if self.splits > 1 { rows * groups(heads, kv_heads) } else { 0 };
        operands.require(
            num_counters <= COUNTERS,
            &format!("at most {COUNTERS} rows x groups of heads where contexts are split"),
            num_counters,
        )?;
        let counters = operands.address("workspace", self.workspace, Kind::Uint8, &[got as i64])?;
        let shared = Tiles::of(heads / kv_heads, head_dim, kind.elt_size_in_bytes() as i64);
        let arguments = Arguments {
            q: operands.address("q", self.q, kind, &query)?,
            k_cache: operands.address("k_cache", self.k_cache, kind, &cache)?,
            v_cache: operands.address("v_cache", self.v_cache, kind, &cache)?,
            block_tables: operands.address(
                "block_tables",
                self.block_tables,
                Kind::Int,
                &[rows, max_blocks],
            )?,
            context_lens: operands.address("context_lens", self.context_lens, Kind::Int, &[rows])?,
            out: operands.address("out", self.out, kind, &query)?,
            partials: counters.wrapping_byte_add(4 * COUNTERS as usize),
            counters,
            num_blocks: blocks,
            max_blocks: max_blocks as i32,
            block_size: block_size as i32,
            heads: heads as i32,
            kv_heads: kv_heads as i32,
            head_dim: head_dim as i32,
            window: self.window.unwrap_or(0) as i32,
            tile_keys: shared.keys as i32,
            scale: self.scale as f32,
        };
        let family = format!("paged_decode_attention_g{}", shared.heads);
        let grid = [rows, groups(heads, kv_heads), self.splits as i64].map(|n| n as usize);
        let shape = Shape { shared_bytes: shared.bytes as usize, ..Shape::blocks(grid, THREADS as u32) };
        kernels.launch(&operands.kernel(&family, kind)?, shape, &arguments)
    }
}

/// Shared memory of a block: queries, two stages of keys and values, scores.
struct Tiles {
    /// Number of query heads of the kernel: 1, 2, 4 or 8.
    heads: i64,
    /// Number of keys in a stage.
    keys: i64,
    bytes: i64,
}

impl Tiles {
    fn of(group: i64, head_dim: i64, element: i64) -> Self {
        let heads = (group.clamp(1, GROUP_MAX) as u64).next_power_of_two() as i64;
        // A row is padded by 16 bytes, so that adjacent keys are in different banks.
        let row = head_dim * element + 16;
        let keys = (STAGE_BYTES / (2 * row) / 8 * 8).clamp(8, 64);
        let reduction = THREADS * 2 * heads * 4;
        let bytes = 4 * keys * row + 4 * heads * (head_dim + keys + 4) + reduction;
        Self { heads, keys, bytes }
    }
}
