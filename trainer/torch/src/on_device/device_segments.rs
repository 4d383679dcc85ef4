//! Segments of packed tokens for attention on a GPU, prepared once for all layers of a pass, so that a layer
//! neither copies nor counts anything.

use tch::{Device, Kind, Tensor};

use crate::Error;
use crate::attention::Segments;
use crate::error::or_panic;
use crate::ffi::{raw, rlt_packed_attention, tensor_from};
use crate::upload::upload;

/// The segments of one packed row of tokens on a GPU, without empty segments.
#[derive(Debug)]
pub struct DeviceSegments {
    /// Cumulative number of queries, from 0: i32 `[segments + 1]`.
    cu_queries: Tensor,
    /// Cumulative number of keys, i32 `[segments + 1]`; the keys of a segment begin with those of its prefix.
    cu_keys: Tensor,
    /// Index of each key's token in the packed row, i64; `None` if no segment continues another.
    keys: Option<Tensor>,
    max_queries: i64,
    max_keys: i64,
    num_tokens: i64,
}

/// Contents of [`DeviceSegments`] on the host.
#[derive(Debug, Default, PartialEq)]
struct Counts {
    cu_queries: Vec<i32>,
    cu_keys: Vec<i32>,
    /// Index of each key's token in the packed row; empty if no segment continues another.
    keys: Vec<i64>,
    max_queries: i64,
    max_keys: i64,
}

impl Counts {
    fn of(segments: Segments<'_>) -> Result<Self, Error> {
        check(segments)?;
        let ranges: Vec<_> = segments.cu_seqlens.windows(2).map(|ends| ends[0]..ends[1]).collect();
        let continues = segments.prefixes.iter().any(Option::is_some);
        let mut counts = Self { cu_queries: vec![0], cu_keys: vec![0], ..Self::default() };
        for (idx, own) in ranges.iter().enumerate().filter(|(_, own)| !own.is_empty()) {
            let prefix = segments.prefixes.get(idx).copied().flatten().map(|prefix| ranges[prefix].clone());
            let prefix = prefix.unwrap_or_default();
            let (num_queries, num_keys) = (own.len() as i64, (prefix.len() + own.len()) as i64);
            counts.max_queries = counts.max_queries.max(num_queries);
            counts.max_keys = counts.max_keys.max(num_keys);
            push_end(&mut counts.cu_queries, num_queries)?;
            push_end(&mut counts.cu_keys, num_keys)?;
            if continues {
                counts.keys.extend(prefix.chain(own.clone()).map(i64::from));
            }
        }
        Ok(counts)
    }
}

fn push_end(ends: &mut Vec<i32>, num: i64) -> Result<(), Error> {
    let end = i64::from(ends.last().copied().unwrap_or(0)) + num;
    let narrow = i32::try_from(end).map_err(|_| argument("at most 2^31 - 1 keys in a stream", end))?;
    ends.push(narrow);
    Ok(())
}

fn check(segments: Segments<'_>) -> Result<(), Error> {
    let Segments { cu_seqlens, prefixes } = segments;
    if cu_seqlens.first() != Some(&0) || !cu_seqlens.is_sorted() {
        return Err(argument("offsets of segments rising from 0", format!("{cu_seqlens:?}")));
    }
    let num_segments = cu_seqlens.len() - 1;
    if !prefixes.is_empty() && prefixes.len() != num_segments {
        return Err(argument(
            &format!("a prefix or none for each of {num_segments} segments"),
            prefixes.len(),
        ));
    }
    let is_root = |idx: usize| prefixes[idx].is_none();
    match (0..prefixes.len())
        .find(|&idx| prefixes[idx].is_some_and(|prefix| prefix >= idx || !is_root(prefix)))
    {
        None => Ok(()),
        Some(idx) => Err(argument(
            &format!("segment {idx} to continue an earlier one that continues none itself"),
            format!("{:?}", prefixes[idx]),
        )),
    }
}

fn argument(expected: &str, got: impl ToString) -> Error {
    Error::Argument { act: "packed attention", expected: expected.to_owned(), got: got.to_string() }
}

/// Packs pairs of i32 into i64 with the same bytes; zero completes an odd number of values.
fn in_pairs(numbers: &[i32]) -> Vec<i64> {
    let pair = |pair: &[i32]| {
        let [low, high] = [0, 1].map(|at| pair.get(at).copied().unwrap_or(0).to_ne_bytes());
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&low);
        bytes[4..].copy_from_slice(&high);
        i64::from_ne_bytes(bytes)
    };
    numbers.chunks(2).map(pair).collect()
}

impl DeviceSegments {
    /// Copies the segments to a GPU, in one transfer.
    ///
    /// # Panics
    /// When the segments are inconsistent, or the device's memory does not suffice.
    pub fn new(segments: Segments<'_>, device: Device) -> Self {
        Self::with_arrays(segments, &[], device).0
    }

    /// Copies the segments and other `arrays` of a pass, i64 `[len]`, to a GPU, in one transfer.
    ///
    /// # Panics
    /// When the segments are inconsistent, or the device's memory does not suffice.
    pub fn with_arrays(segments: Segments<'_>, arrays: &[&[i64]], device: Device) -> (Self, Vec<Tensor>) {
        let counts = or_panic(Counts::of(segments));
        let (queries, keys) = (in_pairs(&counts.cu_queries), in_pairs(&counts.cu_keys));
        let own: [&[i64]; 3] = [&queries, &keys, &counts.keys];
        let mut uploaded = upload(&[&own, arrays].concat(), device);
        let others = uploaded.split_off(own.len());
        let as_i32 = |pairs: &Tensor, len: usize| pairs.view_dtype(Kind::Int).narrow(0, 0, len as i64);
        let segments = Self {
            cu_queries: as_i32(&uploaded[0], counts.cu_queries.len()),
            cu_keys: as_i32(&uploaded[1], counts.cu_keys.len()),
            keys: uploaded.pop().filter(|_| !counts.keys.is_empty()),
            // Flash attention uses another layout for one query per segment.
            max_queries: counts.max_queries.max(2),
            max_keys: counts.max_keys,
            num_tokens: counts.cu_queries.last().copied().unwrap_or(0).into(),
        };
        (segments, others)
    }
}

/// Computes [`varlen_attention`](crate::varlen_attention) on a GPU over prepared segments. bf16 and fp16 use
/// flash attention, fp32 the memory-efficient kernel. The number of kernel launches does not depend on that
/// of segments, and the host never waits for the device. Gradients may be summed in another order in each
/// run.
///
/// # Panics
/// When shapes or dtypes do not fit.
pub fn packed_attention(
    q_thd: &Tensor,
    k_tkd: &Tensor,
    v_tkd: &Tensor,
    segments: &DeviceSegments,
    scale: f64,
    window: Option<i64>,
) -> Tensor {
    let DeviceSegments { cu_queries, cu_keys, keys, max_queries, max_keys, num_tokens } = segments;
    assert_eq!(q_thd.size()[0], *num_tokens, "packed_attention expected the tokens of its segments");
    or_panic(tensor_from("packed_attention", |out| {
        // SAFETY: borrowed tensors (that of keys may be null) and a place for the result.
        unsafe {
            rlt_packed_attention(
                raw(q_thd),
                raw(k_tkd),
                raw(v_tkd),
                raw(cu_queries),
                raw(cu_keys),
                keys.as_ref().map_or(std::ptr::null_mut(), raw),
                *max_queries,
                *max_keys,
                scale,
                window.unwrap_or(0),
                out,
            )
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_has_its_prefix_before_its_own_keys_and_empty_ones_are_left_out() {
        let segments =
            Segments { cu_seqlens: &[0, 3, 5, 5, 6, 8], prefixes: &[None, Some(0), Some(0), Some(0), None] };
        let counts = Counts::of(segments).unwrap();
        let expected = Counts {
            cu_queries: vec![0, 3, 5, 6, 8],
            cu_keys: vec![0, 3, 8, 12, 14],
            keys: vec![0, 1, 2, 0, 1, 2, 3, 4, 0, 1, 2, 5, 6, 7],
            max_queries: 3,
            max_keys: 5,
        };
        assert_eq!(counts, expected);
        assert!(Counts::of(Segments::alone(&[0, 3, 8])).unwrap().keys.is_empty());
    }

    #[test]
    fn segments_that_do_not_fit_are_refused_with_the_reason() {
        let refused =
            |cu_seqlens, prefixes| Counts::of(Segments { cu_seqlens, prefixes }).unwrap_err().to_string();
        assert!(refused(&[0, 5, 3], &[]).contains("[0, 5, 3]"));
        assert!(refused(&[1, 5], &[]).contains("rising from 0"));
        assert!(refused(&[0, 2, 5], &[None]).contains("each of 2 segments"));
        assert!(refused(&[0, 2, 5], &[Some(1), None]).contains("segment 0 to continue an earlier one"));
        assert!(refused(&[0, 2, 5, 6], &[None, Some(0), Some(1)]).contains("segment 2"));
    }

    #[test]
    fn pairs_keep_the_order_of_their_numbers() {
        let numbers = [0, 3, -1, i32::MAX, 7];
        let pairs = Tensor::from_slice(&in_pairs(&numbers)).view_dtype(Kind::Int);
        assert_eq!(Vec::<i32>::try_from(pairs.narrow(0, 0, 5)).unwrap(), numbers);
    }
}
