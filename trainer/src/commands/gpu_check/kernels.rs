//! Measures every kernel of this repository at real shapes in bf16: its error against fp64, and its time
//! compared with that of libtorch's operators for the same result.
//!
//! Times are measured by events on the stream and contain no launch overhead of the host. Operands of a few
//! MiB stay in the GPU's L2 cache between launches, so a rate can exceed the memory bandwidth.

mod case;
mod decoding;
mod experts;
mod state;
mod training;

use rlt_torch::cuda::Kernels;

use super::{Failure, Report};
use case::{Case, Cost, GPU, bytes, empty, random, wide};

pub(super) fn check(report: &mut Report<'_>) -> Result<(), Failure> {
    let (_no_grad, kernels) = (tch::no_grad_guard(), Kernels::load(0)?);
    tch::manual_seed(11);
    decoding::check(&kernels, report)?;
    state::check(&kernels, report)?;
    training::check(&kernels, report)?;
    experts::check(&kernels, report)
}
