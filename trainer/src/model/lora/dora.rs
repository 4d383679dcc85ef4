//! DoRA (Liu et al. 2024, arXiv 2402.09353): the magnitudes of the adapted weight's rows are trained
//! separately from their directions.
//!
//! ```text
//! y = m / |W + s B A| * (x W^T + s (x A^T) B^T) + bias      m [out], f32, trained; |.| of each row
//! ```
//! As in PEFT the gradient treats the norm as a constant (section 4.3 of the paper), and m starts as the
//! norm, so that the first step computes the base's values up to rounding. Dropout, also as in PEFT, applies
//! to the input of the scaled part only: `y = x W^T + bias + m / |.| * (x' W^T + s (x' A^T) B^T) - x' W^T`.

use tch::{Kind, Tensor, no_grad};

use crate::model::projection::{Dropout, Linear, LoraPair};

/// PEFT's name of the magnitudes of a projection.
pub(in crate::model) fn peft_name(projection: &str) -> String {
    format!("base_model.model.{projection}.lora_magnitude_vector")
}

/// Initial magnitudes of a fresh adapter, f32 [out]: the row norms of `weight` with the adapter folded in.
pub(super) fn magnitudes(lora: &LoraPair, weight: &Tensor) -> Tensor {
    no_grad(|| row_norms(&adapted(lora, weight, Kind::Float)))
}

/// Scales the rows of `weight`, f32 with the adapter folded in, to their magnitudes.
pub(in crate::model) fn scaled(weight: Tensor, magnitudes: &Tensor) -> Tensor {
    let scale = magnitudes / row_norms(&weight);
    weight * scale.unsqueeze(1)
}

/// Applies a projection with a DoRA adapter to `x`.
pub(in crate::model) fn forward(
    projection: &Linear,
    lora: &LoraPair,
    magnitudes: &Tensor,
    x: &Tensor,
    dropout: Option<Dropout>,
) -> Tensor {
    let (kind, name) = (x.kind(), projection.name.as_str());
    let norms = no_grad(|| row_norms(&adapted(lora, &projection.weight.numbers(), kind)));
    let scale = (magnitudes / norms).to_kind(kind);
    match dropout.filter(|_| lora.dropout > 0.0) {
        None => {
            let scaled = lora.add_to(projection.product(x, None), x, name, None) * scale;
            projection
                .bias
                .as_ref()
                .map_or_else(|| scaled.shallow_clone(), |bias| &scaled + bias.to_kind(kind))
        }
        Some(dropout) => {
            let kept = x * lora.dropout_mask(x, name, dropout);
            let base = projection.product(&kept, None);
            let scaled = lora.add_to(base.copy(), &kept, name, None) * scale;
            projection.product(x, projection.bias.as_ref()) + scaled - base
        }
    }
}

/// Returns `weight + s B A` in f32, of A and B as a product in `kind` rounds them.
fn adapted(lora: &LoraPair, weight: &Tensor, kind: Kind) -> Tensor {
    let [a, b] = [&lora.a, &lora.b].map(|matrix| matrix.detach().to_kind(kind).to_kind(Kind::Float));
    (b.matmul(&a) * lora.scaling).g_add_(&weight.detach().to_kind(Kind::Float))
}

/// The L2 norm of each row, bounded from below so that a row of zeros stays zero.
fn row_norms(weight: &Tensor) -> Tensor {
    weight.norm_scalaropt_dim(2.0, [1], false).clamp_min(f64::from(f32::MIN_POSITIVE))
}
