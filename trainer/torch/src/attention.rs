//! Attention over packed segments (differentiable), and of single queries over a paged cache (decoding). With
//! a sliding window w, query i attends to key j if i - w < j <= i, as in transformers.

use crate::device_segments::{DeviceSegments, packed_attention};
use crate::error::or_panic;
use crate::ffi::{
    RawScores, check, raw, rlt_paged_attention, rlt_varlen_attention, rlt_write_kv, tensor_from,
};
use tch::Tensor;

/// The segments of T packed tokens.
#[derive(Clone, Copy, Debug)]
pub struct Segments<'a> {
    /// Cumulative segment lengths: the start of each segment, and T at the end; ascending from 0 to T.
    pub cu_seqlens: &'a [i32],
    /// Index of the earlier segment that each segment continues, which itself continues none. An empty slice
    /// means that no segment continues another.
    pub prefixes: &'a [Option<usize>],
}

impl<'a> Segments<'a> {
    /// Makes segments that do not attend to each other.
    pub fn alone(cu_seqlens: &'a [i32]) -> Self {
        Self { cu_seqlens, prefixes: &[] }
    }
}

/// Parameters of attention scores. With s = scale q . k, replaced by c tanh(s / c) if there is a softcap c,
/// the weight of key j is e^s_j / (sum over the visible keys e^s + e^sink).
#[derive(Clone, Copy, Debug)]
pub struct AttentionScores<'a> {
    /// Factor of the products of queries and keys.
    pub scale: f64,
    /// Sliding window: number of tokens that a query attends to, itself included; `None` means no limit.
    pub window: Option<i64>,
    /// Softcap c of the scores (Gemma 2).
    pub softcap: Option<f64>,
    /// Learned score of each query head that has no key and no value, `[H]` (GPT-OSS). Differentiable.
    pub sinks: Option<&'a Tensor>,
}

impl<'a> AttentionScores<'a> {
    /// Makes scores without a softcap and without sinks.
    pub fn new(scale: f64, window: Option<i64>) -> Self {
        Self { scale, window, softcap: None, sinks: None }
    }

    fn as_raw(&self) -> RawScores {
        RawScores {
            scale: self.scale,
            window: self.window.unwrap_or(0),
            softcap: self.softcap.unwrap_or(0.0),
            sinks: self.sinks.map_or(std::ptr::null_mut(), raw),
        }
    }
}

/// Computes causal attention inside each segment of packed tokens. A segment that continues another, its
/// prefix, attends to all of the prefix as if both were one sequence; other segments never attend to each
/// other. So a prefix that many segments continue, such as a prompt with its completions, is computed once.
///
/// `q_thd` is `[T, H, D]`, `k_tkd` and `v_tkd` are `[T, K, D]`, where K divides H (grouped-query attention);
/// all are f32 or bf16 with a contiguous last dimension (slices of a fused projection need no copy). Returns
/// `[T, H, D]`. Differentiable in q, k, v and sinks; on CPUs every run adds in the same order. Memory grows
/// with T, never with its square. On GPUs, [`packed_attention`] saves each layer the upload of its segments.
///
/// # Panics
/// When shapes, dtypes or segments do not fit, and on a GPU if scores have a softcap or sinks.
pub fn varlen_attention(
    q_thd: &Tensor,
    k_tkd: &Tensor,
    v_tkd: &Tensor,
    segments: Segments<'_>,
    scores: AttentionScores<'_>,
) -> Tensor {
    if q_thd.device().is_cuda() {
        let AttentionScores { scale, window, softcap, sinks } = scores;
        assert!(softcap.is_none() && sinks.is_none(), "attention with a cap or sinks expected a CPU");
        let on_device = DeviceSegments::new(segments, q_thd.device());
        return packed_attention(q_thd, k_tkd, v_tkd, &on_device, scale, window);
    }
    let cu_seqlens: Vec<i64> = segments.cu_seqlens.iter().map(|&at| i64::from(at)).collect();
    let index = |prefix: &Option<usize>| prefix.map_or(-1, |segment| segment as i64);
    let prefixes: Vec<i64> = segments.prefixes.iter().map(index).collect();
    or_panic(tensor_from("varlen_attention", |out| {
        // SAFETY: borrowed tensors, two arrays with their lengths, and a place for the result.
        unsafe {
            rlt_varlen_attention(
                raw(q_thd),
                raw(k_tkd),
                raw(v_tkd),
                cu_seqlens.as_ptr(),
                cu_seqlens.len(),
                prefixes.as_ptr(),
                prefixes.len(),
                &scores.as_raw(),
                out,
            )
        }
    }))
}

/// Computes attention of one query token per sequence over its cached context, without gradients.
///
/// `q_bhd` is `[B, H, D]`; the caches are contiguous `[num_blocks, block_size, K, D]` of the same dtype.
/// `block_tables[b]` lists the blocks of sequence b in order; `context_lens[b]` is its number of cached
/// tokens, the query's included. Returns `[B, H, D]`. Several queries of one sequence (a prompt continued
/// over cached blocks) are rows with the same table and ascending context lengths.
///
/// # Panics
/// When shapes do not fit, a table is too short or names a block outside the cache.
pub fn paged_attention(
    q_bhd: &Tensor,
    k_cache: &Tensor,
    v_cache: &Tensor,
    block_tables: &[&[i32]],
    context_lens: &[i32],
    scores: AttentionScores<'_>,
) -> Tensor {
    assert_eq!(
        block_tables.len(),
        context_lens.len(),
        "paged_attention expected a context length for each block table"
    );
    let tables: Vec<*const i32> = block_tables.iter().map(|table| table.as_ptr()).collect();
    let table_lens: Vec<i64> = block_tables.iter().map(|table| table.len() as i64).collect();
    or_panic(tensor_from("paged_attention", |out| {
        // SAFETY: borrowed tensors, three arrays of one entry a query, tables with their lengths, a place for
        // the result.
        unsafe {
            rlt_paged_attention(
                raw(q_bhd),
                raw(k_cache),
                raw(v_cache),
                tables.as_ptr(),
                table_lens.as_ptr(),
                context_lens.as_ptr(),
                tables.len() as i64,
                &scores.as_raw(),
                out,
            )
        }
    }))
}

/// Writes the keys and values of tokens into the paged caches. Token t is written to slot `slot_mapping[t]`,
/// which is block * block_size + offset; a negative slot skips the token.
///
/// # Panics
/// When shapes or dtypes differ or a slot is outside the cache.
pub fn write_kv(
    k_cache: &mut Tensor,
    v_cache: &mut Tensor,
    k_tkd: &Tensor,
    v_tkd: &Tensor,
    slot_mapping: &[i64],
) {
    // SAFETY: borrowed tensors and an array with its length.
    or_panic(check("write_kv", unsafe {
        rlt_write_kv(
            raw(k_cache),
            raw(v_cache),
            raw(k_tkd),
            raw(v_tkd),
            slot_mapping.as_ptr(),
            slot_mapping.len(),
        )
    }));
}
