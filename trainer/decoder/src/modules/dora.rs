//! DoRA (Liu et al. 2024, arXiv 2402.09353): the magnitudes of the adapted weight's rows are trained
//! separately from their directions.
//!
//! ```text
//! y = m / |W + s B A| * (x W^T + s (x A^T) B^T) + bias      m [out], f32, trained; |.| of each row
//! ```
//! As in PEFT the gradient treats the norm as a constant (section 4.3 of the paper), and m starts as the
//! norm, so that the first step computes the base's values up to rounding. Dropout, also as in PEFT, applies
//! to the input of the scaled part only: `y = x W^T + bias + m / |.| * (x' W^T + s (x' A^T) B^T) - x' W^T`.
//! The layer that computes this is in [`super::projection`].

use tch::{Kind, Tensor};

/// Scales the rows of `weight`, f32 with the adapter folded in, to their magnitudes.
pub(super) fn scaled(weight: Tensor, magnitudes: &Tensor) -> Tensor {
    let scale = magnitudes / row_norms(&weight);
    weight * scale.unsqueeze(1)
}

/// Returns `weight + scaling * b a` in f32. A and B are rounded to `kind` first, as in a product in that
/// dtype.
pub(super) fn adapted(weight: &Tensor, [a, b]: [&Tensor; 2], scaling: f64, kind: Kind) -> Tensor {
    let [a, b] = [a, b].map(|matrix| matrix.detach().to_kind(kind).to_kind(Kind::Float));
    (b.matmul(&a) * scaling).g_add_(&weight.detach().to_kind(Kind::Float))
}

/// The L2 norm of each row, bounded from below so that a row of zeros stays zero.
pub(super) fn row_norms(weight: &Tensor) -> Tensor {
    weight.norm_scalaropt_dim(2.0, [1], false).clamp_min(f64::from(f32::MIN_POSITIVE))
}
