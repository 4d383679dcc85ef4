//! Autograd with explicit gradients: what a schedule over detached layers needs.

use crate::border::{check, raw, rlt_backward};
use crate::error::or_panic;
use tch::Tensor;

/// Runs autograd from `output` with `grad_output` (same shape and dtype); gradients accumulate in the leaves'
/// `.grad()`. The graph is freed.
///
/// # Panics
/// When shapes differ or `output` has no graph.
pub fn backward(output: &Tensor, grad_output: &Tensor) {
    backward_many(&[output], &[grad_output]);
}

/// [`backward`] from several outputs of one graph in one pass.
///
/// # Panics
/// When there is not one gradient for each output, shapes differ or an output has no graph.
pub fn backward_many(outputs: &[&Tensor], grads: &[&Tensor]) {
    assert_eq!(outputs.len(), grads.len(), "backward expected one gradient for each output");
    let outputs: Vec<_> = outputs.iter().copied().map(raw).collect();
    let grads: Vec<_> = grads.iter().copied().map(raw).collect();
    // SAFETY: both arrays hold `outputs.len()` pointers to tensors borrowed for the call.
    or_panic(check("backward", unsafe { rlt_backward(outputs.as_ptr(), grads.as_ptr(), outputs.len()) }));
}
