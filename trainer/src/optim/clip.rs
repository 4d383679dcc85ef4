//! The global gradient norm and what follows from it.

use tch::{Kind, TchError, Tensor};

/// L2 norm over all gradients, one wait for the device in all; infinite or NaN where any value is.
pub(super) fn global_norm(gradients: &[Tensor]) -> Result<f64, TchError> {
    if gradients.is_empty() {
        return Ok(0.0);
    }
    // The norm of each tensor in its own precision as torch does it, but their sum in double precision.
    let norms: Vec<Tensor> = gradients
        .iter()
        .map(|gradient| gradient.f_norm()?.f_to_kind(Kind::Double))
        .collect::<Result<_, _>>()?;
    Tensor::f_stack(&norms, 0)?.f_norm()?.f_double_value(&[])
}

/// The factor that brings `grad_norm` down to `max_grad_norm`, at most 1. As `torch.nn.utils.clip_grad_norm_`,
/// the small constant in it included.
pub(super) fn coefficient(grad_norm: f64, max_grad_norm: f64) -> f64 {
    (max_grad_norm / (grad_norm + 1e-6)).min(1.0)
}
