//! A kernel that rotates the queries and keys of a fused projection, and writes keys and values to the cache.

use super::kernels::Kernels;
use super::module::Shape;
use crate::Error;
use std::ffi::c_void;
use tch::{Kind, Tensor};

/// Optional norms of query and key heads (Qwen3), rotary embedding of both, and the write of keys and values
/// to the paged cache, for tokens of any sequences.
#[derive(Clone, Copy, Debug)]
pub struct RopeAndWriteKv<'a> {
    /// Queries, keys and values `[tokens, (heads + 2 * kv_heads) * head_dim]`; f32, bf16 or f16.
    pub qkv: &'a Tensor,
    /// Rotary angle per position of each pair of dimensions, f32 `[head_dim / 2]`; a pair with 0 is not
    /// rotated.
    pub inverse_frequencies: &'a Tensor,
    /// Factor of the cosines and sines of rotated pairs (YaRN's attention factor); 1 for none.
    pub rope_factor: f64,
    /// Position of each token, i32 `[tokens]`, or `[3, tokens]` with `axes`. A negative one marks a token of
    /// no sequence, whose queries become zero.
    pub positions: &'a Tensor,
    /// Index of the position that rotates each pair of dimensions, i32 `[head_dim / 2]`, each 0 to 2; `None`
    /// if a token has a single position.
    pub axes: Option<&'a Tensor>,
    /// Cache slot of each token, i32 `[tokens]`: block * block_size + offset; negative slots are not written.
    pub slots: &'a Tensor,
    /// Weights `[head_dim]` of the norms of query and key heads.
    pub qk_norms: Option<(&'a Tensor, &'a Tensor)>,
    /// Number of a head's values that the norms average: `head_dim`, or less if zeros pad the head.
    pub norm_width: usize,
    /// Epsilon of the norms.
    pub eps: f64,
    /// Offset added to the weights of the norms.
    pub offset: f64,
    /// Key cache `[blocks, block_size, kv_heads, head_dim]`.
    pub k_cache: &'a Tensor,
    /// Value cache, shaped like `k_cache`.
    pub v_cache: &'a Tensor,
    /// Rotated queries `[tokens, heads, head_dim]`.
    pub q_out: &'a Tensor,
}

#[repr(C)]
struct Arguments {
    qkv: *const c_void,
    inverse_frequencies: *const c_void,
    axes: *const c_void,
    positions: *const c_void,
    slots: *const c_void,
    q_norm: *const c_void,
    k_norm: *const c_void,
    k_cache: *mut c_void,
    v_cache: *mut c_void,
    q_out: *mut c_void,
    inverse_width: f64,
    eps: f64,
    tokens: i64,
    num_slots: i64,
    heads: i32,
    kv_heads: i32,
    head_dim: i32,
    offset: f32,
    rope_factor: f32,
}

impl RopeAndWriteKv<'_> {
    /// Launches one warp per head of each token.
    ///
    /// # Errors
    /// When shapes, dtypes or devices do not fit, or head_dim is above 256 or not a multiple of 4.
    pub fn launch(&self, kernels: &Kernels) -> Result<(), Error> {
        const WARPS: usize = 4;
        let operands = kernels.operands("rope_and_write_kv");
        let kind = self.q_out.kind();
        let [tokens, heads, head_dim] = operands.sizes("q_out", self.q_out)?;
        let [blocks, block_size, kv_heads, _] = operands.sizes("k_cache", self.k_cache)?;
        operands.require(
            head_dim % 4 == 0 && head_dim <= 256,
            "a head_dim of at most 256 in steps of 4",
            head_dim,
        )?;
        let cache = [blocks, block_size, kv_heads, head_dim];
        let width = (heads + 2 * kv_heads) * head_dim;
        let norm = |name, weight| operands.address_or_null(name, weight, kind, &[head_dim]);
        let frequencies = self.inverse_frequencies;
        let positions: &[i64] = if self.axes.is_some() { &[3, tokens] } else { &[tokens] };
        let arguments = Arguments {
            qkv: operands.address("qkv", self.qkv, kind, &[tokens, width])?,
            inverse_frequencies: operands.address(
                "inverse_frequencies",
                frequencies,
                Kind::Float,
                &[head_dim / 2],
            )?,
            axes: operands.address_or_null("axes", self.axes, Kind::Int, &[head_dim / 2])?,
            positions: operands.address("positions", self.positions, Kind::Int, positions)?,
            slots: operands.address("slots", self.slots, Kind::Int, &[tokens])?,
            q_norm: norm("the query norm", self.qk_norms.map(|(q, _)| q))?,
            k_norm: norm("the key norm", self.qk_norms.map(|(_, k)| k))?,
            k_cache: operands.address("k_cache", self.k_cache, kind, &cache)?,
            v_cache: operands.address("v_cache", self.v_cache, kind, &cache)?,
            q_out: operands.address("q_out", self.q_out, kind, &[tokens, heads, head_dim])?,
            inverse_width: 1.0 / self.norm_width.max(1) as f64,
            eps: self.eps,
            tokens,
            num_slots: blocks * block_size,
            heads: heads as i32,
            kv_heads: kv_heads as i32,
            head_dim: head_dim as i32,
            offset: self.offset as f32,
            rope_factor: self.rope_factor as f32,
        };
        let grid = ((tokens * (heads + 2 * kv_heads)) as usize).div_ceil(WARPS);
        let name = operands.kernel("rope_and_write_kv", kind)?;
        kernels.launch(&name, Shape::blocks([grid, 1, 1], 32 * WARPS as u32), &arguments)
    }
}
