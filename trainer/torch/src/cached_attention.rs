//! Attention of (chunked) prefills whose keys and values are already in a paged cache: they are gathered once
//! for all queries of a pass, then attended to like packed segments.

use tch::{Kind, Tensor};

use crate::Error;
use crate::border::{raw, rlt_packed_attention, tensor_from};

/// Which rows of a cache the queries of each sequence see; all tensors are on the cache's device.
#[derive(Debug)]
pub struct CachedSegments {
    /// Where the queries of each sequence begin, and the number of all: i32 `[sequences + 1]`. None is empty.
    pub cu_queries: Tensor,
    /// The same of its keys, of which its queries are the last.
    pub cu_keys: Tensor,
    /// The cache slot of each key, i32.
    pub slots: Tensor,
    /// Of the sequence with the most.
    pub max_queries: usize,
    /// Of the sequence with the most.
    pub max_keys: usize,
}

/// Attention `[T, H, D]` of queries `[T, H, D]`, each to the keys of its sequence up to its own; the caches
/// are `[blocks, block_size, K, D]` of its dtype, K dividing H. bf16 and fp16 by flash attention, fp32 by the
/// memory-efficient kernel; the number of launches does not depend on that of sequences, and nothing waits.
///
/// # Errors
/// When shapes or dtypes do not fit, or there is no room.
pub fn cached_attention(
    q_thd: &Tensor,
    (k_cache, v_cache): (&Tensor, &Tensor),
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
