//! One layer with tensor parallelism: the ranks of a group have the same tokens and a shard of every weight.
//! The layer is five autograd graphs, with all-reduces between them (Megatron-LM, Shoeybi et al. 2019):
//!
//! ```text
//! forward   input, norm | q k v, attention, o -> (+) -> residual sum, norm | gate up, down -> (+) -> output
//! backward  <-         (+) <-                     <-                      (+) <-                  <-
//! ```
//! `(+)` is an all-reduce: in the forward pass of the row-parallel products' summands, in the backward pass
//! of the gradients of the column-parallel products' input. Norms and residual sums are computed on every
//! rank from the same bits by the same operations, and so are their gradients: these need no exchange.
//! All-reduces are calls of this schedule, not nodes of autograd's graph, so that a lost rank is an error
//! that names it.
//!
//! Sequence parallelism acts between the products and attention as usual, on the heads of this rank.
//!
//! Legend of shapes: t tokens of this rank, d hidden size.

use rlt_torch::{backward, backward_many};
use tch::Tensor;

use super::Groups;
use super::pass::Exchanged;
use crate::model::{Adapter, Decoder, DecoderLayer, LayerContext, PackedInput};
use crate::parallel::{RankError, TensorParallel, TpGroup};

/// Computes the embeddings of a micro-batch, `[t, d]`. This rank contributes those in its shard of the
/// vocabulary.
///
/// # Errors
/// [`RankError`] when a rank of the group is lost.
pub(super) fn embed(
    decoder: &Decoder,
    input: &PackedInput,
    adapter: Adapter,
    TensorParallel { group, cuts }: TensorParallel<'_>,
) -> Result<Tensor, RankError> {
    let hidden_td = decoder.embed_part(&input.tokens, adapter, cuts);
    group.all_reduce(&hidden_td)?;
    Ok(hidden_td)
}

/// The output of one graph and the input of the next, both `[t, d]`. They have the same values; for summands
/// these are the sum.
#[derive(Debug)]
struct Joint {
    end_td: Tensor,
    /// Input of the next graph, a leaf.
    start_td: Tensor,
}

impl Joint {
    /// A joint of values that are the same on all ranks.
    fn of_copy(end_td: Tensor) -> Self {
        let start_td = end_td.detach().set_requires_grad(end_td.requires_grad());
        Self { end_td, start_td }
    }

    /// A joint of summands, which are all-reduced in place: no product needs its own output.
    fn of_sum(end_td: Tensor, group: &TpGroup) -> Result<Self, RankError> {
        group.all_reduce(&end_td.detach())?;
        Ok(Self::of_copy(end_td))
    }

    /// The gradient of the next graph's input; `None` if it needs none.
    fn gradient(&self) -> Option<Tensor> {
        let grad_td = self.start_td.grad();
        (self.start_td.requires_grad() && grad_td.defined()).then_some(grad_td)
    }

    /// The gradient of the next graph's input, summed over the ranks.
    fn summed_gradient(&self, group: &TpGroup) -> Result<Option<Tensor>, RankError> {
        let Some(grad_td) = self.gradient() else { return Ok(None) };
        let grad_td = grad_td.contiguous();
        group.all_reduce(&grad_td)?;
        Ok(Some(grad_td))
    }
}

/// The graphs of a layer that has run.
#[derive(Debug)]
pub(super) struct TensorPass {
    attention_input: Joint,
    /// Graphs around attention; `None` without sequence parallelism.
    exchanged: Option<Exchanged>,
    attention: Joint,
    hidden: Joint,
    mlp_input: Joint,
    mlp: Joint,
}

impl TensorPass {
    /// Runs `layer` on `input_td`, a leaf; the first result is the output, `[t, d]`.
    ///
    /// # Errors
    /// [`RankError`] when a rank of a group is lost.
    pub(super) fn run(
        layer: &DecoderLayer,
        input_td: &Tensor,
        context: &LayerContext,
        (groups, TensorParallel { group, cuts }): (Groups<'_>, TensorParallel<'_>),
    ) -> Result<(Tensor, Self), RankError> {
        let attention_input = Joint::of_copy(layer.attention_input(input_td, context));
        let heads = layer.queries_keys_values(&attention_input.start_td, context, cuts);
        let (attended, exchanged) = match groups.sp {
            Some(sp_group) => Exchanged::run(layer, heads, context, sp_group)?,
            None => (layer.attend(&heads.0, &heads.1, &heads.2, context), None),
        };
        let attention = Joint::of_sum(layer.attention_part(&attended, context, cuts), group)?;
        let (hidden_td, normed_td) =
            layer.after_attention_sum(input_td, attention.start_td.shallow_clone(), context);
        let (hidden, mlp_input) = (Joint::of_copy(hidden_td), Joint::of_copy(normed_td));
        let mlp = Joint::of_sum(layer.feed_forward_part(&mlp_input.start_td, context, cuts), group)?;
        let output_td = layer.after_feed_forward_sum(&hidden.start_td, mlp.start_td.shallow_clone(), context);
        Ok((output_td, Self { attention_input, exchanged, attention, hidden, mlp_input, mlp }))
    }

    /// Runs the backward pass from the gradients of the last graph's inputs.
    ///
    /// # Errors
    /// [`RankError`] when a rank of a group is lost.
    pub(super) fn backward(self, groups: Groups<'_>, group: &TpGroup) -> Result<(), RankError> {
        let Self { attention_input, exchanged, attention, hidden, mlp_input, mlp } = self;
        carry_back(&[(&mlp, mlp.gradient())]);
        let of_input = mlp_input.summed_gradient(group)?;
        carry_back(&[(&hidden, hidden.gradient()), (&mlp_input, of_input)]);
        drop((mlp, mlp_input, hidden));
        carry_back(&[(&attention, attention.gradient())]);
        drop(attention);
        if let Some((exchanged, sp_group)) = exchanged.zip(groups.sp) {
            exchanged.backward(sp_group)?;
        }
        carry_back(&[(&attention_input, attention_input.summed_gradient(group)?)]);
        Ok(())
    }
}

/// Propagates gradients through the graphs that end in these joints.
fn carry_back(joints: &[(&Joint, Option<Tensor>)]) {
    let wanted = joints.iter().filter_map(|(joint, grad)| Some((&joint.end_td, grad.as_ref()?)));
    let (ends, grads): (Vec<&Tensor>, Vec<&Tensor>) = wanted.unzip();
    match (ends.as_slice(), grads.as_slice()) {
        ([], _) => {}
        ([end], [grad]) => backward(end, grad),
        (ends, grads) => backward_many(ends, grads),
    }
}
