//! Autograd with explicit gradients, as needed by a schedule over detached layers.

use crate::error::or_panic;
use crate::ffi::{check, raw, rlt_backward, rlt_set_grad};
use tch::Tensor;

/// Runs autograd from `output` with `grad_output` (same shape and dtype); gradients accumulate in the leaves'
/// `.grad()`. The graph is freed.
///
/// # Panics
/// When shapes differ or `output` has no graph.
pub fn backward(output: &Tensor, grad_output: &Tensor) {
    backward_many(&[output], &[grad_output]);
}

/// Runs [`backward`] from several outputs of one graph in one pass.
///
/// # Panics
/// When the number of gradients is not that of the outputs, shapes differ or an output has no graph.
pub fn backward_many(outputs: &[&Tensor], grads: &[&Tensor]) {
    assert_eq!(outputs.len(), grads.len(), "backward expected one gradient for each output");
    let outputs: Vec<_> = outputs.iter().copied().map(raw).collect();
    let grads: Vec<_> = grads.iter().copied().map(raw).collect();
    // SAFETY: both arrays hold `outputs.len()` pointers to tensors borrowed for the call.
    or_panic(check("backward", unsafe { rlt_backward(outputs.as_ptr(), grads.as_ptr(), outputs.len()) }));
}

/// Makes `grad` (same shape, dtype and device) the leaf's `.grad()`, sharing memory with it. `None` removes
/// and frees the gradient, so that the next backward pass stores its own gradient instead of adding to zeros.
///
/// # Panics
/// When shape, dtype or device differ.
pub fn set_grad(leaf: &Tensor, grad: Option<&Tensor>) {
    // SAFETY: borrowed tensors; the gradient may be null.
    or_panic(check("set_grad", unsafe { rlt_set_grad(raw(leaf), grad.map_or(std::ptr::null_mut(), raw)) }));
}
