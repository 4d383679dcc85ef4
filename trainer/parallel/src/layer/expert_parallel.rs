//! Expert parallelism as a style: every rank sends the rows of its tokens to the ranks that hold the chosen
//! experts, computes the rows that it receives, and returns them.
//!
//! ```text
//! local tokens    attention's output -> norm, router -> rows  |         returned -> weighted sum -> output
//!                                                             |             ^
//! all-to-all      counts, then rows                           v             |
//! local experts                                           received -> experts -> computed
//! ```
//! A rank without tokens takes part, because other ranks have rows for its experts.
//!
//! Each rank sums the expert outputs of its own tokens in f32, in the order in which a token chose its
//! experts, as without expert parallelism. Results differ only by the rounding of matrix products, which in
//! libtorch depends on the number of rows.
//!
//! Legend of shapes: n rows of local tokens, m rows for local experts, d hidden size.

use std::rc::Rc;

use rlt_core::expert_rows::{ReceivedRows, rows_for_ranks};
use rlt_layout::AxisPlace;
use rlt_torch::{ExpertRows, forget_values};
use tch::{Device, Tensor};

use super::style::{Boundary, Exchange, ParallelStyle};
use crate::{AxisGroup, RankError};

/// Expert-parallel group, whose ranks hold different experts and compute rows for each other's tokens.
#[derive(Clone, Copy, Debug)]
pub struct ExpertParallel<'a>(pub &'a AxisGroup);

impl<'a> ParallelStyle<'a> for ExpertParallel<'a> {
    /// Returns `None`: the exchange depends on the routes of a layer, so [`ExpertDispatch::exchange`] makes
    /// it.
    fn exchange(&self, _: Boundary) -> Option<Box<dyn Exchange + 'a>> {
        None
    }

    fn experts(&self, counts: &[i64], device: Device) -> Result<Option<ExpertDispatch<'a>>, RankError> {
        ExpertDispatch::new(self.0, counts, device).map(Some)
    }
}

/// Distribution of the rows of one layer to the ranks that hold their experts.
#[derive(Clone, Debug)]
pub struct ExpertDispatch<'a> {
    group: &'a AxisGroup,
    /// Order of the received rows by local expert.
    rows: Rc<ExpertRows>,
    /// Number of rows that this rank sends to each rank.
    sent: Rc<[i64]>,
    /// Number of rows that this rank receives from each rank.
    received: Rc<[i64]>,
}

impl<'a> ExpertDispatch<'a> {
    /// Exchanges `counts`, the number of this rank's rows for each expert. Collective.
    fn new(group: &'a AxisGroup, counts: &[i64], device: Device) -> Result<Self, RankError> {
        let num_ranks = group.place().size;
        let num_own = counts.len() / num_ranks;
        let ReceivedRows { from_ranks, experts } =
            ReceivedRows::new(&group.exchange_counts(counts)?, num_own);
        let rows = Rc::new(ExpertRows::new(&experts, 1, num_own, device));
        Ok(Self { group, rows, sent: rows_for_ranks(counts, num_ranks).into(), received: from_ranks.into() })
    }

    /// Order of the rows that this rank computes, by local expert.
    pub(super) fn rows(&self) -> &ExpertRows {
        &self.rows
    }

    /// Returns this rank's index in the expert-parallel group, and the group's size.
    pub(super) fn place(&self) -> AxisPlace {
        self.group.place()
    }

    /// The exchange at a boundary; `None` except on either side of the experts.
    pub(super) fn exchange(&self, at: Boundary) -> Option<Box<dyn Exchange + 'a>> {
        match at {
            Boundary::ExpertRows => Some(Box::new(RowsToExperts(self.clone()))),
            Boundary::ExpertOutputs => Some(Box::new(OutputsToTokens(self.clone()))),
            _ => None,
        }
    }

    /// Sends rows of tokens, `[n, d]`, to the ranks of their experts; returns the received ones, `[m, d]`.
    fn to_experts(&self, rows_nd: &Tensor) -> Result<Tensor, RankError> {
        self.group.all_to_all(rows_nd, &self.sent, &self.received)
    }

    /// Sends rows of experts, `[m, d]`, to the ranks of their tokens; returns the received ones, `[n, d]`.
    fn to_tokens(&self, rows_md: &Tensor) -> Result<Tensor, RankError> {
        self.group.all_to_all(rows_md, &self.received, &self.sent)
    }
}

/// The exchange before the experts. The received rows are rank-major, and sorted by expert after the cut.
#[derive(Debug)]
struct RowsToExperts<'a>(ExpertDispatch<'a>);

impl Exchange for RowsToExperts<'_> {
    fn forward(&self, end: &Tensor) -> Result<Tensor, RankError> {
        let received_md = self.0.to_experts(end)?;
        forget_values(end)?;
        Ok(received_md)
    }

    fn unpack(&self, leaves: &[Tensor]) -> Result<Vec<Tensor>, RankError> {
        let sorted_md = self.0.rows.gather(&leaves[0]);
        // The graph of the experts keeps the sorted rows, so the rows in received order can be freed.
        forget_values(&leaves[0])?;
        Ok(vec![sorted_md])
    }

    fn backward(&self, grad: &Tensor) -> Result<Tensor, RankError> {
        self.0.to_tokens(grad)
    }

    fn spans_micro_batches(&self) -> bool {
        true
    }
}

/// The exchange after the experts, of outputs for the received rows.
#[derive(Debug)]
struct OutputsToTokens<'a>(ExpertDispatch<'a>);

impl Exchange for OutputsToTokens<'_> {
    fn pack(&mut self, tensors: Vec<Tensor>) -> Vec<Tensor> {
        vec![self.0.rows.ungather(&tensors[0])]
    }

    fn forward(&self, end: &Tensor) -> Result<Tensor, RankError> {
        let returned_nd = self.0.to_tokens(end)?;
        // The graph of the weighted sum keeps the returned rows, so the values that were sent can be freed.
        forget_values(end)?;
        Ok(returned_nd)
    }

    fn backward(&self, grad: &Tensor) -> Result<Tensor, RankError> {
        self.0.to_experts(grad)
    }

    fn spans_micro_batches(&self) -> bool {
        true
    }
}
