//! Experts of a layer with expert parallelism: every rank sends the rows of its tokens to the ranks that hold
//! the chosen experts, computes the rows that it receives, and returns them. The layer is then three autograd
//! graphs, with an all-to-all on either side of the experts:
//!
//! ```text
//! local tokens    attention's output -> norm, router -> rows  |         returned -> weighted sum -> output
//!                                                             |             ^
//! all-to-all      counts, then rows                           v             |
//! local experts                                           received -> experts -> computed
//! ```
//! The backward pass sends gradients through the same all-to-alls. They are calls of this schedule, not nodes
//! of autograd's graph, so that a lost rank is an error that names it. A rank without tokens makes the same
//! calls, because others have rows for its experts.
//!
//! A token's rows are summed in f32 in the order of its choices, on its own rank, as without expert
//! parallelism. Only products differ, by rounding: libtorch's depend on the number of rows.
//!
//! Legend of shapes: t tokens, n rows of local tokens, m rows for local experts, d hidden size.

use rlt_core::expert_rows::{ReceivedRows, rows_for_ranks};
use rlt_torch::{ExpertRows, backward, backward_many, forget_values};
use tch::Tensor;

use super::Model;
use crate::model::{Adapter, BeforeExperts, DecoderLayer, LayerContext};
use crate::parallel::{EpGroup, RankError};

/// Rows that were computed by the ranks that hold their experts.
#[derive(Debug)]
pub(super) struct RemoteExperts {
    /// Number of rows that this rank sends to each rank; `received` is the number that it receives from each.
    sent: Vec<i64>,
    received: Vec<i64>,
    /// Received rows, a leaf, `[m, d]`, rank-major, without values.
    received_md: Tensor,
    /// Outputs of the local experts for the received rows, `[m, d]`, rank-major, without values but with a
    /// graph.
    computed_md: Tensor,
    /// Outputs for the rows of local tokens, a leaf, `[n, d]`, sorted by expert.
    returned_nd: Tensor,
}

impl RemoteExperts {
    /// Computes `rows_nd`, `[n, d]`, on the ranks of `group`; `counts` gives the number of rows for each
    /// expert. The values of the rows are freed. Collective.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub(super) fn run(
        layer: &DecoderLayer,
        rows_nd: &Tensor,
        counts: &[i64],
        (group, adapter): (&EpGroup, Adapter),
    ) -> Result<Self, RankError> {
        let shard = group.shard();
        let num_own = counts.len() / shard.num_shards;
        let sent = rows_for_ranks(counts, shard.num_shards);
        let ReceivedRows { from_ranks: received, experts } =
            ReceivedRows::new(&group.exchange_counts(counts)?, num_own);
        // All ranks exchange gradients, whether or not a parameter before the experts is trained.
        let received_md = group.all_to_all(rows_nd, &sent, &received)?.set_requires_grad(true);
        forget_values(rows_nd)?;
        let rows = ExpertRows::new(&experts, 1, num_own, rows_nd.device());
        let sorted_md = rows.gather(&received_md);
        // The products keep the sorted rows, the weighted sum keeps the returned ones.
        forget_values(&received_md)?;
        let computed_md = rows.ungather(&layer.experts_of_rows(&sorted_md, &rows, (shard, adapter)));
        let returned_nd = group.all_to_all(&computed_md, &received, &sent)?.set_requires_grad(true);
        forget_values(&computed_md)?;
        Ok(Self { sent, received, received_md, computed_md, returned_nd })
    }

    /// Takes part in [`Self::run`] without tokens; `None` for a layer without an exchange of experts.
    /// Collective.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub(super) fn join(
        model: Model<'_>,
        layer: &DecoderLayer,
        adapter: Adapter,
    ) -> Result<Option<Self>, RankError> {
        let (decoder, experts) = (model.decoder, layer.experts());
        let Some(((group, _), experts)) = model.groups().ep.zip(experts).zip(decoder.config.experts.as_ref())
        else {
            return Ok(None);
        };
        let none = [0, decoder.config.hidden_size as i64];
        let none = Tensor::empty(none, (decoder.compute_kind(), decoder.device()));
        Self::run(layer, &none, &vec![0; experts.num_experts], (group, adapter)).map(Some)
    }

    /// Runs the backward pass from the gradient of the returned outputs, through the experts, which
    /// accumulate their gradients. Returns the gradient of the rows of local tokens, `[n, d]`. Collective.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub(super) fn backward(self, group: &EpGroup) -> Result<Tensor, RankError> {
        let Self { sent, received, received_md, computed_md, returned_nd } = self;
        let grad_nd = returned_nd.grad();
        let grad_nd = if grad_nd.defined() { grad_nd } else { returned_nd.zeros_like().detach() };
        drop(returned_nd);
        let grad_md = group.all_to_all(&grad_nd, &sent, &received)?;
        backward(&computed_md, &grad_md);
        drop((computed_md, grad_md));
        group.all_to_all(&received_md.grad(), &received, &sent)
    }
}

/// The graphs around the experts of a layer that has run.
#[derive(Debug)]
pub(super) struct ExpertPass {
    remote: RemoteExperts,
    /// Outputs of the first graph: residual stream, input of the experts, weights and rows.
    sources: [Tensor; 4],
    /// Leaves of the third graph, with the values of the first three sources.
    leaves: [Tensor; 3],
}

impl ExpertPass {
    /// Runs a layer after attention, with its experts; the first result is the layer's output, `[t, d]`.
    ///
    /// # Errors
    /// [`RankError`] when a rank of the group is lost.
    pub(super) fn run(
        layer: &DecoderLayer,
        before: BeforeExperts,
        context: &LayerContext,
        group: &EpGroup,
    ) -> Result<(Tensor, Self), RankError> {
        let counts = before.routes.rows.counts();
        let remote = RemoteExperts::run(layer, &before.rows_nd, &counts, (group, context.adapter))?;
        let (before, sources) = before.detached();
        let output_td = layer.after_experts(&before, &remote.returned_nd, context);
        let [hidden_td, normed_td, weights_tk, _] = before.tensors();
        let leaves = [hidden_td, normed_td, weights_tk].map(Tensor::shallow_clone);
        Ok((output_td, Self { remote, sources, leaves }))
    }

    /// Runs the backward pass from the gradients of the third graph's inputs. `router_term` is a term of the
    /// loss with the first graph.
    ///
    /// # Errors
    /// [`RankError`] when a rank of the group is lost.
    pub(super) fn backward(self, router_term: Option<&Tensor>, group: &EpGroup) -> Result<(), RankError> {
        let Self { remote, sources, leaves } = self;
        let grad_rows_nd = remote.backward(group)?;
        let grads = leaves.map(|leaf| leaf.grad()).into_iter().chain([grad_rows_nd]);
        let terms = router_term.map(|term| (term.shallow_clone(), term.ones_like()));
        let pairs = sources.into_iter().zip(grads).chain(terms);
        let (outputs, grads): (Vec<Tensor>, Vec<Tensor>) =
            pairs.filter(|(output, grad)| output.requires_grad() && grad.defined()).unzip();
        if !outputs.is_empty() {
            backward_many(&outputs.iter().collect::<Vec<_>>(), &grads.iter().collect::<Vec<_>>());
        }
        Ok(())
    }
}
