//! Boundaries between the segments of a layer, and the exchanges between ranks at each of them.

use std::fmt::Debug;

use tch::{Device, Tensor};

use super::expert_parallel::ExpertDispatch;
use crate::RankError;

/// A point of the forward pass at which ranks may exchange tensors. Variants are in the order of the pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Boundary {
    /// Embedded tokens, `[t, d]`, outside of the layers.
    Embedding,
    /// Normed input of attention's products, `[t, d]`.
    AttentionInput,
    /// Queries, keys and values, `[t, heads, width]` each.
    Heads,
    /// Output of attention, `[t, heads, width]`.
    Attended,
    /// Projected output of attention, `[t, d]`.
    AttentionOutput,
    /// Normed input of the feed-forward block, `[t, d]`.
    MlpInput,
    /// A row of the input for each chosen expert of a token, sorted by expert, `[n, d]`.
    ExpertRows,
    /// Outputs of the experts for these rows, `[n, d]`.
    ExpertOutputs,
    /// Output of the feed-forward block, `[t, d]`.
    MlpOutput,
    /// Input of the head, `[c, d]`, outside of the layers.
    HeadInput,
}

/// Parallelism along one mesh axis: the exchanges of its ranks inside a layer.
pub trait ParallelStyle<'a>: Debug {
    /// The exchange at a boundary; `None` where the graph is not cut.
    fn exchange(&self, at: Boundary) -> Option<Box<dyn Exchange + 'a>>;

    /// Exchanges `counts`, the number of this rank's rows for each expert of a layer, with the ranks that
    /// hold the other experts; `None` if all experts are local. Collective.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    fn experts(&self, _counts: &[i64], _device: Device) -> Result<Option<ExpertDispatch<'a>>, RankError> {
        Ok(None)
    }

    /// Whether this rank counts the terms of the loss that all ranks of the axis compute with the same value.
    /// Only one rank does, because gradients are summed over the axis.
    fn counts_terms(&self) -> bool {
        true
    }
}

/// One exchange of tensors between ranks, with its inverse for gradients. It may free values that no graph
/// needs any more.
pub trait Exchange: Debug {
    /// Packs the tensors of the boundary into the tensors to send, as part of the graph before the cut.
    fn pack(&mut self, tensors: Vec<Tensor>) -> Vec<Tensor> {
        tensors
    }

    /// Exchanges the values of `end`, without a graph.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    fn forward(&self, end: &Tensor) -> Result<Tensor, RankError>;

    /// Unpacks the received tensors into the tensors of the boundary, as part of the graph after the cut.
    ///
    /// # Errors
    /// [`RankError`] when memory cannot be freed.
    fn unpack(&self, leaves: &[Tensor]) -> Result<Vec<Tensor>, RankError> {
        Ok(leaves.iter().map(Tensor::shallow_clone).collect())
    }

    /// Returns the gradient of the sent tensor from that of the received one.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    fn backward(&self, grad: &Tensor) -> Result<Tensor, RankError>;

    /// Whether ranks exchange tensors of different micro-batches, so that a rank without one takes part, and
    /// gradients are exchanged whether or not this rank needs them.
    fn spans_micro_batches(&self) -> bool {
        false
    }
}

/// The styles of one pass, in the order in which they act at a boundary.
#[derive(Debug, Default)]
pub struct Styles<'a> {
    styles: Vec<Box<dyn ParallelStyle<'a> + 'a>>,
}

impl<'a> Styles<'a> {
    /// Adds a style, if there is one.
    #[must_use]
    pub fn with(mut self, style: Option<impl ParallelStyle<'a> + 'a>) -> Self {
        if let Some(style) = style {
            self.styles.push(Box::new(style));
        }
        self
    }

    /// Exchanges a tensor outside of the layers, without a graph. Collective.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn forward_at(&self, at: Boundary, tensor: Tensor) -> Result<Tensor, RankError> {
        self.exchanges(at).iter().try_fold(tensor, |tensor, exchange| exchange.forward(&tensor))
    }

    /// Sends a gradient through the inverse exchanges outside of the layers. Collective.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn backward_at(&self, at: Boundary, grad: Tensor) -> Result<Tensor, RankError> {
        self.exchanges(at).iter().rev().try_fold(grad, |grad, exchange| exchange.backward(&grad))
    }

    /// The exchanges at a boundary, in order.
    pub(super) fn exchanges(&self, at: Boundary) -> Vec<Box<dyn Exchange + 'a>> {
        self.styles.iter().filter_map(|style| style.exchange(at)).collect()
    }

    /// The distribution of rows to experts, from the number of rows for each expert; `None` if all experts
    /// are local. Collective.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub(super) fn experts(
        &self,
        counts: &[i64],
        device: Device,
    ) -> Result<Option<ExpertDispatch<'a>>, RankError> {
        for style in &self.styles {
            if let Some(dispatch) = style.experts(counts, device)? {
                return Ok(Some(dispatch));
            }
        }
        Ok(None)
    }

    /// Whether this rank counts the terms of the loss that several ranks compute with the same value.
    pub(super) fn counts_terms(&self) -> bool {
        self.styles.iter().all(|style| style.counts_terms())
    }
}
