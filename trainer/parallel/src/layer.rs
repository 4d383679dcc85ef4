//! One pass over a decoder layer, forward and backward, on ranks that compute the layer together.
//!
//! ```text
//! style            exchanges, forward                                          backward
//! TensorParallel   AttentionOutput, MlpOutput, Embedding: all-reduce           copy
//!                  AttentionInput, MlpInput, HeadInput: copy                   all-reduce
//! Ulysses          Heads: all-to-all from tokens to heads, Attended: back      the same, inverted
//! ExpertParallel   ExpertRows: all-to-all of rows to experts, ExpertOutputs: back
//! ```
//! Each axis along which ranks exchange tensors inside a layer is a [`style::ParallelStyle`]. The pass runs
//! the segments of a layer and asks the styles at every [`Boundary`] between two of them. Where a style
//! exchanges tensors the autograd graph is cut: their values go to other ranks, and the received values are
//! leaves of the next graph. The backward pass runs the graphs last to first and sends gradients through the
//! inverse exchanges. Without a style a layer is one graph.
//!
//! Exchanges are calls of this pass, not nodes of autograd's graph, so that a lost rank is an error that
//! names it. Styles are independent of each other: a layer with several styles has the cuts of all.

mod expert_parallel;
mod graphs;
mod pass;
mod style;
mod tensor_parallel;
mod ulysses;

pub use expert_parallel::{ExpertDispatch, ExpertParallel};
pub use pass::LayerPass;
pub use style::{Boundary, Exchange, ParallelStyle, Styles};
pub use tensor_parallel::TensorParallel;
pub use ulysses::Ulysses;

#[cfg(test)]
mod tests;
