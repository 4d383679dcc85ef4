//! Attention of (chunked) prefills whose keys and values are already in a paged cache. The keys and values
//! are gathered once for all queries of a pass, and then attended to like packed segments.

use tch::{Kind, Tensor};

use crate::Error;
use crate::ffi::{raw, rlt_packed_attention, tensor_from};

/// Cache slots that the queries of each sequence attend to; all tensors are on the cache's device.
#[derive(Debug)]
pub struct CachedSegments {
    /// Cumulative number of queries, from 0: i32 `[sequences + 1]`. Each sequence has at least one.
    pub cu_queries: Tensor,
    /// Cumulative number of keys, i32 `[sequences + 1]`; the last keys of a sequence are those of its
    /// queries.
    pub cu_keys: Tensor,
    /// Cache slot of each key, i32.
    pub slots: Tensor,
    /// Largest number of queries of a sequence.
    pub max_queries: usize,
    /// Largest number of keys of a sequence.
    pub max_keys: usize,
}

/// Computes attention `[T, H, D]` of queries `[T, H, D]`, each to the keys of its sequence up to its own
/// position. The caches are `[blocks, block_size, K, D]` of the same dtype, where K divides H. bf16 and fp16
/// use flash attention, fp32 the memory-efficient kernel. The number of kernel launches does not depend on
/// that of sequences, and the host never waits for the device.
///
/// # Errors
/// When shapes or dtypes do not fit, or memory does not suffice.
pub fn cached_attention(
    q_thd: &Tensor,
    k_cache: &Tensor,
    v_cache: &Tensor,
    segments: &CachedSegments,
    scale: f64,
    window: Option<i64>,
) -> Result<Tensor, Error> {
    let act = "attention to cached prompts";
    let fits = k_cache.dim() == 4 && segments.slots.kind() == Kind::Int;
    if !fits {
        let expected = "caches [blocks, block_size, K, D] and i32 slots".into();
        let got = format!("{:?} and {:?}", k_cache.size(), segments.slots.kind());
        return Err(Error::Argument { act, expected, got });
    }
    let (keys, values) = (k_cache.flatten(0, 1), v_cache.flatten(0, 1));
    tensor_from(act, |out| {
        // SAFETY: borrowed tensors and a place for the result.
        unsafe {
            rlt_packed_attention(
                raw(q_thd),
                raw(&keys),
                raw(&values),
                raw(&segments.cu_queries),
                raw(&segments.cu_keys),
                raw(&segments.slots),
                // Flash attention lays one query a sequence out otherwise.
                segments.max_queries.max(2) as i64,
                segments.max_keys as i64,
                scale,
                window.unwrap_or(0),
                out,
            )
        }
    })
}
