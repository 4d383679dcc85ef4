//! The autograd graphs of one layer, and the cuts between them.

use rlt_torch::backward_many;
use tch::{Device, Tensor};

use super::expert_parallel::ExpertDispatch;
use super::style::{Boundary, Exchange, Styles};
use crate::RankError;

/// The graphs of a layer whose forward pass is running.
#[derive(Debug)]
pub(super) struct Graphs<'s, 'a> {
    styles: &'s Styles<'a>,
    /// Distribution of rows, once the layer has routed its tokens; `None` if all experts are local.
    experts: Option<ExpertDispatch<'a>>,
    /// Cuts so far, in forward order.
    cuts: Vec<GraphCut<'a>>,
    /// Term of the loss that the current graph computes, such as a router's auxiliary loss.
    term: Option<Tensor>,
}

/// The cuts of a layer that has run.
#[derive(Debug)]
pub(super) struct CutGraphs<'a> {
    /// Cuts in forward order.
    pub(super) cuts: Vec<GraphCut<'a>>,
    /// Term of the loss that the last graph computes.
    pub(super) term: Option<Tensor>,
}

/// One cut of a layer's autograd graph, at an exchange.
#[derive(Debug)]
pub(super) struct GraphCut<'a> {
    /// Outputs of the graph before the cut that were exchanged; their values may have been freed.
    ends: Vec<Tensor>,
    /// Inputs of the graph after the cut, leaves with the received values.
    leaves: Vec<Tensor>,
    /// Tensors that crossed the cut without an exchange.
    carried: Vec<Carried>,
    /// Term of the loss that the graph before the cut computes.
    term: Option<Tensor>,
    exchange: Box<dyn Exchange + 'a>,
}

/// A tensor that crossed a cut without an exchange: an output of the one graph, and a leaf of the next.
#[derive(Debug)]
struct Carried {
    end: Tensor,
    leaf: Tensor,
}

impl<'s, 'a> Graphs<'s, 'a> {
    pub(super) fn new(styles: &'s Styles<'a>) -> Self {
        Self { styles, experts: None, cuts: Vec::new(), term: None }
    }

    /// Runs the exchanges of all styles at a boundary, and returns the tensors for the next segment.
    /// `carried` are the other tensors that later segments read: if a style cuts the graph, they become
    /// leaves of the next graph, and remain the same leaves at later cuts. Collective.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub(super) fn cross(
        &mut self,
        at: Boundary,
        tensors: Vec<Tensor>,
        carried: &mut [&mut Tensor],
    ) -> Result<Vec<Tensor>, RankError> {
        let of_experts = self.experts.as_ref().and_then(|experts| experts.exchange(at));
        let mut tensors = tensors;
        for exchange in self.styles.exchanges(at).into_iter().chain(of_experts) {
            tensors = self.cut(exchange, tensors, carried)?;
        }
        Ok(tensors)
    }

    /// [`Self::cross`] for a boundary with one tensor.
    ///
    /// # Errors
    /// As [`Self::cross`].
    pub(super) fn cross_one(
        &mut self,
        at: Boundary,
        tensor: Tensor,
        carried: &mut [&mut Tensor],
    ) -> Result<Tensor, RankError> {
        Ok(self.cross(at, vec![tensor], carried)?.swap_remove(0))
    }

    /// Distributes rows to the ranks of their experts, from the number of rows for each expert. Collective.
    ///
    /// # Errors
    /// As [`Self::cross`].
    pub(super) fn dispatch(
        &mut self,
        counts: &[i64],
        device: Device,
    ) -> Result<Option<ExpertDispatch<'a>>, RankError> {
        self.experts = self.styles.experts(counts, device)?;
        Ok(self.experts.clone())
    }

    /// Sets the term of the loss that the current graph computes. If several ranks compute the same term and
    /// sum their gradients, all ranks but one drop it.
    pub(super) fn add_term(&mut self, term: Option<Tensor>) {
        self.term = term.filter(|_| self.styles.counts_terms());
    }

    /// Ends the forward pass of a layer. If the output `output_td` has no graph, the cuts are dropped.
    pub(super) fn finish(self, output_td: &Tensor) -> CutGraphs<'a> {
        let cuts = if output_td.requires_grad() { self.cuts } else { Vec::new() };
        CutGraphs { cuts, term: self.term }
    }

    fn cut(
        &mut self,
        mut exchange: Box<dyn Exchange + 'a>,
        tensors: Vec<Tensor>,
        carried: &mut [&mut Tensor],
    ) -> Result<Vec<Tensor>, RankError> {
        let ends = exchange.pack(tensors);
        let spans = exchange.spans_micro_batches();
        let mut leaves = Vec::with_capacity(ends.len());
        for end in &ends {
            let received = exchange.forward(end)?;
            leaves.push(received.set_requires_grad(end.requires_grad() || spans));
        }
        let crossed = exchange.unpack(&leaves)?;
        let carried: Vec<Carried> = carried.iter_mut().filter_map(|tensor| Carried::over(tensor)).collect();
        // A cut without a graph is not kept, because no rank trains anything before it.
        if spans || !carried.is_empty() || ends.iter().any(Tensor::requires_grad) {
            let term = self.term.take();
            self.cuts.push(GraphCut { ends, leaves, carried, term, exchange });
        }
        Ok(crossed)
    }
}

impl Carried {
    /// Replaces a tensor by a leaf with its values; `None` if it has no graph, or is a leaf.
    fn over(tensor: &mut Tensor) -> Option<Self> {
        if !tensor.requires_grad() || tensor.is_leaf() {
            return None;
        }
        let leaf = tensor.detach().set_requires_grad(true);
        let end = std::mem::replace(tensor, leaf.shallow_clone());
        Some(Self { end, leaf })
    }
}

impl GraphCut<'_> {
    /// Sends the gradients of the leaves through the exchange, and runs the backward pass of the graph before
    /// the cut. Collective.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub(super) fn backward(self) -> Result<(), RankError> {
        let Self { ends, leaves, carried, term, exchange } = self;
        let mut roots = Roots::default();
        for Carried { end, leaf } in carried {
            if let Some(grad) = gradient(&leaf) {
                roots.push(end, grad);
            }
        }
        for (end, leaf) in ends.into_iter().zip(leaves) {
            let grad = gradient(&leaf);
            let grad = grad.or_else(|| exchange.spans_micro_batches().then(|| leaf.detach().zeros_like()));
            drop(leaf);
            if let Some(grad) = grad {
                roots.push(end, exchange.backward(&grad)?);
            }
        }
        roots.push_term(term);
        roots.backward();
        Ok(())
    }
}

/// The gradient of a leaf; `None` if it has none.
fn gradient(leaf: &Tensor) -> Option<Tensor> {
    let grad = leaf.grad();
    grad.defined().then_some(grad)
}

/// Outputs of one graph with their gradients.
#[derive(Debug, Default)]
pub(super) struct Roots {
    outputs: Vec<Tensor>,
    grads: Vec<Tensor>,
}

impl Roots {
    /// Adds an output with its gradient, unless nothing before it is trained.
    pub(super) fn push(&mut self, output: Tensor, grad: Tensor) {
        if output.requires_grad() {
            self.outputs.push(output);
            self.grads.push(grad);
        }
    }

    /// Adds a term of the loss.
    pub(super) fn push_term(&mut self, term: Option<Tensor>) {
        if let Some(term) = term {
            let grad = term.ones_like();
            self.push(term, grad);
        }
    }

    /// Runs the backward pass of the graph; its leaves accumulate their gradients.
    pub(super) fn backward(self) {
        let Self { outputs, grads } = self;
        if !outputs.is_empty() {
            backward_many(&outputs.iter().collect::<Vec<_>>(), &grads.iter().collect::<Vec<_>>());
        }
    }
}
