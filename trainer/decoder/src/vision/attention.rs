//! Attention of a vision tower: the patches of a span, which is a frame or a window, attend only to each
//! other, in both directions. Rotary embeddings rotate half of a head's pairs by the patch's row and half by
//! its column.
//!
//! Shapes: p patches, h heads, w width of a head.

use std::collections::BTreeMap;

use tch::{Kind, Tensor};

/// Cosines and sines of each patch, f32 `[p, 1, w]`.
#[derive(Debug)]
pub(super) struct Rotary {
    cos: Tensor,
    sin: Tensor,
}

impl Rotary {
    /// Tables for heads of width `width` and patches at `rows` and `columns` of their frame, i64 `[p]`.
    pub(super) fn new([rows, columns]: [&Tensor; 2], width: i64) -> Self {
        const THETA: f64 = 10_000.0;
        let numbers = (Kind::Float, rows.device());
        let exponents = Tensor::arange_start_step(0, width / 2, 2, numbers) / (width / 2) as f64;
        let frequencies = Tensor::pow_scalar(THETA, &exponents).reciprocal();
        let angles =
            [rows, columns].map(|place| place.to_kind(Kind::Float).unsqueeze(-1) * frequencies.unsqueeze(0));
        let half = Tensor::cat(&angles, -1);
        let whole = Tensor::cat(&[&half, &half], -1).unsqueeze(1);
        Self { cos: whole.cos(), sin: whole.sin() }
    }

    /// Rotates heads `[p, h, w]`, in f32 as transformers does.
    pub(super) fn rotate(&self, x_phw: &Tensor) -> Tensor {
        let wide =
            if x_phw.kind() == Kind::Double { x_phw.shallow_clone() } else { x_phw.to_kind(Kind::Float) };
        let halves = wide.chunk(2, -1);
        let turned = Tensor::cat(&[-&halves[1], halves[0].shallow_clone()], -1);
        (wide * &self.cos + turned * &self.sin).to_kind(x_phw.kind())
    }
}

/// Spans of patches that attend to each other, grouped by length: those of one length are computed together.
#[derive(Debug)]
pub(super) struct AttentionWindows {
    /// Patch indices of all spans of a length, i64 `[spans * length]`, and that length.
    by_length: Vec<(Tensor, i64)>,
}

impl AttentionWindows {
    /// The spans of [`Self::patches_by_length`], uploaded as tensors.
    pub(super) fn new(by_length: impl Iterator<Item = (Tensor, i64)>) -> Self {
        Self { by_length: by_length.collect() }
    }

    /// Groups adjacent spans of `lengths` patches by length: the patch indices of all spans of each length.
    pub(super) fn patches_by_length(lengths: &[usize]) -> BTreeMap<usize, Vec<i64>> {
        let mut patches: BTreeMap<usize, Vec<i64>> = BTreeMap::new();
        let mut start = 0;
        for length in lengths {
            patches.entry(*length).or_default().extend(start as i64..(start + length) as i64);
            start += length;
        }
        patches
    }
}

/// Attention of queries, keys and values `[p, h, w]` within `spans`, to `[p, h, w]`.
pub(super) fn attend([q, k, v]: [&Tensor; 3], spans: &AttentionWindows) -> Tensor {
    let mut attended = q.zeros_like();
    for (patches, length) in &spans.by_length {
        let of_spans = |x: &Tensor| x.index_select(0, patches).unflatten(0, [-1, *length]).transpose(1, 2);
        let mask = None::<Tensor>;
        let seen = Tensor::scaled_dot_product_attention(
            &of_spans(q),
            &of_spans(k),
            &of_spans(v),
            mask,
            0.0,
            false,
            None,
            false,
        );
        let _ = attended.index_copy_(0, patches, &seen.transpose(1, 2).flatten(0, 1));
    }
    attended
}
