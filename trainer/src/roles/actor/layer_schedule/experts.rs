//! The experts of a layer with expert parallelism: every rank sends the rows of its tokens to the ranks that
//! have their experts, computes those that it receives, and returns them. The layer then is three autograd
//! graphs with an all-to-all on either side of the experts:
//!
//! ```text
//! own tokens      attention's output -> norm, router -> rows  |          returned -> weighed sum -> output
//!                                                             |             ^
//! all-to-all      counts, then rows                           v             |
//! own experts                                             received -> experts -> computed
//! ```
//! The backward pass sends gradients through the same all-to-alls. They are calls of this schedule, not nodes
//! of autograd's graph, so that a lost rank is an error that names it. A rank without tokens makes the same
//! calls: others have rows for its experts.
//!
//! A token's rows are summed in fp32 in the order of its choices, on its own rank, as without expert
//! parallelism. Only products differ, by roundings: libtorch's depend on the number of rows.
//!
//! Legend of shapes: t tokens, n rows of own tokens, m rows for own experts, d hidden size.

use rlt_core::expert_rows::{ReceivedRows, rows_for_ranks};
use rlt_torch::{ExpertRows, backward, backward_many, forget_values};
use tch::Tensor;

use super::Model;
use crate::model::{Adapter, BeforeExperts, DecoderLayer, LayerContext};
use crate::parallel::{EpGroup, RankError};

/// Rows that were computed by the ranks that have their experts.
#[derive(Debug)]
pub(super) struct RemoteExperts {
    /// Rows that this rank sends to each rank, and those that it receives.
    sent: Vec<i64>,
    received: Vec<i64>,
    /// A leaf, `[m, d]`, rank-major, without values.
    received_md: Tensor,
    /// The outputs of own experts for these, likewise: a graph.
    computed_md: Tensor,
    /// A leaf, `[n, d]`: the outputs for the rows of own tokens, sorted by expert.
    returned_nd: Tensor,
}

impl RemoteExperts {
    /// Computes `rows_nd`, `[n, d]`, of which each expert has `counts`, on the ranks of `group`. The values
    /// of the rows are freed. Collective.
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
        // The products keep sorted rows, the weighed sum the returned ones.
        forget_values(&received_md)?;
        let computed_md = rows.ungather(&layer.experts_of_rows(&sorted_md, &rows, (shard, adapter)));
        let returned_nd = group.all_to_all(&computed_md, &received, &sent)?.set_requires_grad(true);
        forget_values(&computed_md)?;
        Ok(Self { sent, received, received_md, computed_md, returned_nd })
    }

    /// The part of a rank without tokens; `None` for a layer that all ranks compute alone. Collective.
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

    /// Carries gradients back: of the outputs that this rank has received, over the experts, which add up
    /// theirs, to the rows of own tokens, `[n, d]`. Collective.
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

/// The part of a layer around its experts, with its graphs.
#[derive(Debug)]
pub(super) struct ExpertPass {
    remote: RemoteExperts,
    /// Outputs of the first graph: residual stream, input of the experts, weights and rows.
    sources: [Tensor; 4],
    /// The leaves with the values of the first three.
    leaves: [Tensor; 3],
}

impl ExpertPass {
    /// Runs a layer with experts after attention: its output, `[t, d]`.
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

    /// From the gradients of the third graph's inputs on. `router_term` is a term of the loss with the first
    /// graph behind it.
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
