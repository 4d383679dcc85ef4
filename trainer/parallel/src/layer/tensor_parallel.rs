//! Tensor parallelism as a style: the ranks of a group have the same tokens and a shard of every weight
//! (Megatron-LM, Shoeybi et al. 2019).
//!
//! ```text
//! forward   input, norm | q k v, attention, o -> (+) -> residual sum, norm | gate up, down -> (+) -> output
//! backward  <-         (+) <-                     <-                      (+) <-                  <-
//! ```
//! `(+)` is an all-reduce. In the forward pass it sums the outputs of row-parallel products, in the backward
//! pass the input gradients of column-parallel products. Norms and residual sums are computed on every rank
//! from the same bits by the same operations, and so are their gradients: these need no exchange.
//!
//! A router reads the same input as column-parallel products, so all ranks choose the same experts. Each rank
//! computes a summand of the experts' outputs, and their weighted sum is all-reduced with the block's output.

use tch::Tensor;

use super::style::{Boundary, Exchange, ParallelStyle};
use crate::{AxisGroup, RankError};

/// Tensor-parallel group of a sharded role.
#[derive(Clone, Copy, Debug)]
pub struct TensorParallel<'a> {
    /// Group whose ranks hold the shards of every weight.
    pub group: &'a AxisGroup,
}

impl<'a> ParallelStyle<'a> for TensorParallel<'a> {
    fn exchange(&self, at: Boundary) -> Option<Box<dyn Exchange + 'a>> {
        match at {
            Boundary::AttentionInput | Boundary::MlpInput | Boundary::HeadInput => {
                Some(Box::new(Copied(self.group)))
            }
            Boundary::Embedding | Boundary::AttentionOutput | Boundary::MlpOutput => {
                Some(Box::new(Summed(self.group)))
            }
            Boundary::Heads | Boundary::Attended | Boundary::ExpertRows | Boundary::ExpertOutputs => None,
        }
    }

    fn counts_terms(&self) -> bool {
        self.group.place().index == 0
    }
}

/// A tensor that is the same on all ranks; its gradients are all-reduced.
#[derive(Debug)]
struct Copied<'a>(&'a AxisGroup);

impl Exchange for Copied<'_> {
    fn forward(&self, end: &Tensor) -> Result<Tensor, RankError> {
        Ok(end.detach())
    }

    fn backward(&self, grad: &Tensor) -> Result<Tensor, RankError> {
        let grad = grad.contiguous();
        self.0.all_reduce(&grad)?;
        Ok(grad)
    }
}

/// Summands of the ranks, which are all-reduced in place, because the backward pass of a product does not
/// need the product's output. The gradient of the sum is the gradient of each summand.
#[derive(Debug)]
struct Summed<'a>(&'a AxisGroup);

impl Exchange for Summed<'_> {
    fn forward(&self, end: &Tensor) -> Result<Tensor, RankError> {
        let sum = end.detach();
        self.0.all_reduce(&sum)?;
        Ok(sum)
    }

    fn backward(&self, grad: &Tensor) -> Result<Tensor, RankError> {
        Ok(grad.shallow_clone())
    }
}
