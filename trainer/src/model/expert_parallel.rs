//! Expert parallelism: a layer whose experts are on several ranks, in three parts between which ranks
//! exchange rows.
//!
//! ```text
//! before_experts   attention's output, norm, router -> a row for each choice, sorted by expert [n, d]
//! experts_of_rows  local experts on rows of any rank's tokens, [m, d] to [m, d]
//! after_experts    weighted sum of each token's rows, shared expert, residual sum [t, d]
//! ```
//! Each part is an autograd graph of its own. Together they compute [`DecoderLayer::forward`]; the exchange
//! is in `actor::layer_schedule::experts`.
//!
//! Shapes: t tokens, k experts a token, n = t k rows of local tokens, m rows for local experts, d hidden
//! width.

use rlt_core::mesh::EpShard;
use rlt_torch::ExpertRows;
use tch::Tensor;

use super::experts::Routes;
use super::layer::{DecoderLayer, FeedForward, LayerContext, Projections, routed};
use super::own_projections::OwnProjections;
use super::projection::Adapter;

/// Outputs of the layer before its experts: the rows to exchange, and what the part after the experts needs.
#[derive(Debug)]
pub(crate) struct BeforeExperts {
    /// Residual stream after attention, `[t, d]`.
    pub(crate) hidden_td: Tensor,
    /// Input of the experts, `[t, d]`.
    pub(crate) normed_td: Tensor,
    /// Chosen experts of each token, with their weights.
    pub(crate) routes: Routes,
    /// A row for each choice, sorted by expert, `[n, d]`.
    pub(crate) rows_nd: Tensor,
}

impl DecoderLayer {
    /// Runs the layer, after attention, up to its experts, token by token; `None` if it has no experts.
    pub(crate) fn before_experts(
        &self,
        hidden_td: &Tensor,
        attended_thd: &Tensor,
        context: &LayerContext,
    ) -> Option<BeforeExperts> {
        let own = OwnProjections::new(self, context);
        let FeedForward::Experts { experts, .. } = own.feed_forward() else { return None };
        let Ok((hidden_td, normed_td)) = self.before_mlp(hidden_td, attended_thd, &own);
        let routes = routed(&normed_td, &experts);
        let rows_nd = routes.rows.gather(&normed_td);
        Some(BeforeExperts { hidden_td, normed_td, routes, rows_nd })
    }

    /// The outputs of the local experts, those of `shard`, for their sorted `rows`: `[m, d]` to `[m, d]`.
    /// Without rows, or in a layer without experts, returns a copy of the input.
    pub(crate) fn experts_of_rows(
        &self,
        x_md: &Tensor,
        rows: &ExpertRows,
        (shard, adapter): (EpShard, Adapter),
    ) -> Tensor {
        match self.experts() {
            Some(weights) if x_md.size()[0] > 0 => {
                weights.of_rows(x_md, rows, shard, self.activation(), adapter)
            }
            // Kernels need a row; the graph stays for the exchange of gradients.
            _ => x_md * 1.0,
        }
    }

    /// Runs the rest of the layer, token by token, from `before` and the outputs of its rows, `[n, d]` in the
    /// same order.
    pub(crate) fn after_experts(
        &self,
        before: &BeforeExperts,
        outputs_nd: &Tensor,
        context: &LayerContext,
    ) -> Tensor {
        let BeforeExperts { hidden_td, normed_td, routes, .. } = before;
        let mixed_td = routes.rows.combine(outputs_nd, &routes.weights_tk);
        let own = OwnProjections::new(self, context);
        let mlp_td = match own.feed_forward() {
            FeedForward::Experts { experts, beside } => {
                let Ok(mlp_td) = self.with_beside(mixed_td, normed_td, &experts, beside.as_ref());
                mlp_td
            }
            FeedForward::Dense(_) => mixed_td,
        };
        self.with_features(self.after_mlp(hidden_td, mlp_td, context.adapter), context)
    }
}

impl BeforeExperts {
    /// The tensors with a gradient: the three inputs of [`DecoderLayer::after_experts`], then the rows.
    pub(crate) fn tensors(&self) -> [&Tensor; 4] {
        [&self.hidden_td, &self.normed_td, &self.routes.weights_tk, &self.rows_nd]
    }

    /// A copy whose tensors are leaves of a new graph, and the tensors they were made of. The rows are
    /// detached without becoming leaves.
    pub(crate) fn detached(self) -> (Self, [Tensor; 4]) {
        let sources = self.tensors().map(Tensor::shallow_clone);
        let leaf = |tensor: &Tensor| tensor.detach().set_requires_grad(tensor.requires_grad());
        let Self { hidden_td, normed_td, routes, rows_nd } = self;
        let routes = Routes { weights_tk: leaf(&routes.weights_tk), ..routes };
        let rows_nd = rows_nd.detach();
        (Self { hidden_td: leaf(&hidden_td), normed_td: leaf(&normed_td), routes, rows_nd }, sources)
    }
}
