//! Tensor parallelism as a style: the ranks of a group have the same tokens and a shard of every weight
//! (Megatron-LM, Shoeybi et al. 2019).
//!
//! ```text
//! forward   input, norm | q k v, attention, o -> (+) -> residual sum, norm | gate up, down -> (+) -> output
//! backward  <-         (+) <-                     <-                      (+) <-                  <-
//! ```
//! `(+)` is an all-reduce: in the forward pass of the row-parallel products' summands, in the backward pass
//! of the gradients of the column-parallel products' input. Norms and residual sums are computed on every
//! rank from the same bits by the same operations, and so are their gradients: these need no exchange.
//!
//! A router acts on the input of the block as column-parallel products do. All ranks choose the same experts;
//! each has a summand of the experts' outputs, whose weighted sum is all-reduced with the block's output.

use tch::Tensor;

use super::style::{Boundary, Exchange, ParallelStyle};
use crate::{AxisGroup, RankError};

/// Tensor-parallel group of a sharded role.
#[derive(Clone, Copy, Debug)]
pub struct TensorParallel<'a> {
    /// Group of the ranks with the other shards of every weight.
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

/// Summands, which are all-reduced in place, since no product needs its own output; the gradient of the sum
/// is that of each summand.
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
