//! One layer forward and backward. In a sequence-parallel group (Ulysses) attention computes all tokens of
//! some heads, and the other operators all heads of some tokens. The layer is then three autograd graphs,
//! with an all-to-all on either side of attention:
//!
//! ```text
//! local tokens    input -> norm, q k v, rope -> packed   |       returned -> output, feed-forward -> output
//!                                                 |                 ^
//! all-to-all                                      v                 |
//! local heads                                  gathered -> attention -> attended
//! ```
//! The backward pass sends gradients through the same all-to-alls. They are calls of this schedule, not nodes
//! of autograd's graph, so that a lost rank is an error that names it. With expert parallelism the part after
//! attention has all-to-alls of its own, see [`super::experts`]; with tensor parallelism there are
//! all-reduces around the products, see [`super::tensor`].
//!
//! Legend of shapes: n ranks of the group, t tokens of one of them, padding included, s tokens of the group,
//! h query heads and k key heads of the model, g and j those of one rank, w head width, d hidden size.

use rlt_torch::{backward, backward_many, forget_values};
use tch::Tensor;

use super::Groups;
use super::experts::ExpertPass;
use super::tensor::TensorPass;
use crate::model::{DecoderLayer, LayerContext, QueriesKeysValues};
use crate::parallel::{RankError, SpGroup};

/// A layer that has run, with its graph unless gradients were off.
#[derive(Debug)]
pub(super) struct LayerPass {
    input_td: Tensor,
    /// The layer's output, `[t, d]`.
    pub(super) output_td: Tensor,
    /// The layer's term of the routers' auxiliary loss, if it has one to train.
    router_term: Option<Tensor>,
    /// Graphs around attention; `None` without sequence parallelism.
    exchanged: Option<Exchanged>,
    /// Graphs around the experts; `None` if this rank has all experts, or the layer has none.
    experts: Option<ExpertPass>,
    /// Graphs of a tensor-parallel layer; `None` without tensor parallelism.
    tensor: Option<Box<TensorPass>>,
}

/// Inputs and outputs of the graphs around attention.
#[derive(Debug)]
pub(super) struct Exchanged {
    /// Heads of local tokens by receiving rank, `[n, t, g + 2 j, w]`, with a graph but without values.
    packed: Tensor,
    /// This rank's heads of all tokens, a leaf, `[s, g + 2 j, w]`.
    gathered: Tensor,
    /// Output of attention for this rank's heads, `[s, g, w]`.
    attended: Tensor,
    /// Output of attention for local tokens, a leaf, `[t, h, w]`.
    returned: Tensor,
}

impl LayerPass {
    /// Runs `layer` on `input_td`, a leaf `[t, d]`.
    ///
    /// # Errors
    /// [`RankError`] when a rank of a group is lost.
    pub(super) fn run(
        layer: &DecoderLayer,
        input_td: Tensor,
        context: &LayerContext,
        groups: Groups<'_>,
    ) -> Result<Self, RankError> {
        if let Some(tp) = groups.tp {
            let (output_td, pass) = TensorPass::run(layer, &input_td, context, (groups, tp))?;
            let tensor = output_td.requires_grad().then(|| Box::new(pass));
            return Ok(Self {
                input_td,
                output_td,
                router_term: None,
                exchanged: None,
                experts: None,
                tensor,
            });
        }
        let (attended_thd, exchanged) = match groups.sp {
            Some(sp_group) => {
                Exchanged::run(layer, layer.before_attention(&input_td, context), context, sp_group)?
            }
            None => {
                let (q_thd, k_tkd, v_tkd) = layer.before_attention(&input_td, context);
                (layer.attend(&q_thd, &k_tkd, &v_tkd, context), None)
            }
        };
        let before = groups
            .ep
            .and_then(|group| Some((layer.before_experts(&input_td, &attended_thd, context)?, group)));
        let (output_td, experts) = match before {
            Some((before, group)) => {
                let (output_td, pass) = ExpertPass::run(layer, before, context, group)?;
                let wants_gradient = output_td.requires_grad();
                (output_td, wants_gradient.then_some(pass))
            }
            None => (layer.after_attention(&input_td, &attended_thd, context), None),
        };
        let router_term = context.take_router_term();
        Ok(Self { input_td, output_td, router_term, exchanged, experts, tensor: None })
    }

    /// Runs the backward pass from the gradient of the output, `[t, d]`; parameters accumulate their
    /// gradients. Returns the gradient of the input, if the input needs one.
    ///
    /// # Errors
    /// [`RankError`] when a rank of a group is lost.
    pub(super) fn backward(self, grad_td: &Tensor, groups: Groups<'_>) -> Result<Option<Tensor>, RankError> {
        let Self { input_td, output_td, router_term, exchanged, experts, tensor } = self;
        match (&router_term, &experts) {
            (Some(term), None) => backward_many(&[&output_td, term], &[grad_td, &term.ones_like()]),
            _ => backward(&output_td, grad_td),
        }
        drop(output_td);
        if let Some((experts, ep_group)) = experts.zip(groups.ep) {
            experts.backward(router_term.as_ref(), ep_group)?;
        }
        if let Some((exchanged, sp_group)) = exchanged.zip(groups.sp) {
            exchanged.backward(sp_group)?;
        }
        if let Some((tensor, tp)) = tensor.zip(groups.tp) {
            tensor.backward(groups, tp.group)?;
        }
        Ok(input_td.requires_grad().then(|| input_td.grad()))
    }
}

impl Exchanged {
    /// Attention's output for local tokens, `[t, h, w]`, from their queries, keys and values.
    pub(super) fn run(
        layer: &DecoderLayer,
        heads: QueriesKeysValues,
        context: &LayerContext,
        sp_group: &SpGroup,
    ) -> Result<(Tensor, Option<Self>), RankError> {
        let (packed, heads) = {
            let (q_thw, k_tkw, v_tkw) = heads;
            split_heads(&q_thw, &k_tkw, &v_tkw, sp_group.shard().num_shards as i64)
        };
        let gathered = sp_group.all_to_all(&packed)?.flatten(0, 1).narrow(0, 0, context.num_tokens() as i64);
        forget_values(&packed)?;
        let gathered = gathered.set_requires_grad(packed.requires_grad());
        let attended = {
            let heads = gathered.split_with_sizes(heads, 1);
            layer.attend(&heads[0], &heads[1], &heads[2], context)
        };
        let returned = collect_heads(&sp_group.all_to_all(&by_rank(&attended, sp_group))?);
        let returned = returned.set_requires_grad(attended.requires_grad());
        let exchanged = Self { packed, gathered, attended, returned: returned.shallow_clone() };
        // If nothing before attention is trained, on this and the other ranks, nothing is kept.
        let is_kept = returned.requires_grad();
        Ok((returned, is_kept.then_some(exchanged)))
    }

    /// Runs the backward pass from the gradient of `returned`.
    pub(super) fn backward(self, sp_group: &SpGroup) -> Result<(), RankError> {
        let Self { packed, gathered, attended, returned } = self;
        let grads = returned.grad().unflatten(1, [sp_group.shard().num_shards as i64, -1]).transpose(0, 1);
        drop(returned);
        let grad_attended = sp_group.all_to_all(&grads)?.flatten(0, 1).narrow(0, 0, attended.size()[0]);
        backward(&attended, &grad_attended);
        drop((attended, grad_attended));
        let grad_packed = sp_group.all_to_all(&by_rank(&gathered.grad(), sp_group))?;
        drop(gathered);
        backward(&packed, &grad_packed);
        Ok(())
    }
}

/// Splits queries `[t, h, w]`, keys and values `[t, k, w]` of local tokens into one block for each of
/// `num_ranks`, `[n, t, g + 2 j, w]`. The second result is the numbers of heads in a block: g, j and j. A
/// block has a rank's share of the query heads, and the key heads that they attend to. If there are fewer key
/// heads than ranks, several ranks get the same one.
fn split_heads(q_thw: &Tensor, k_tkw: &Tensor, v_tkw: &Tensor, num_ranks: i64) -> (Tensor, [i64; 3]) {
    let shared = |heads: &Tensor| {
        let copies = (num_ranks / heads.size()[1]).max(1);
        heads.unsqueeze(2).expand([-1, -1, copies, -1], false).flatten(1, 2)
    };
    let blocks = [q_thw.shallow_clone(), shared(k_tkw), shared(v_tkw)];
    let blocks = blocks.map(|heads| heads.unflatten(1, [num_ranks, -1]));
    let num_heads = [0, 1, 2].map(|block: usize| blocks[block].size()[2]);
    (Tensor::cat(&blocks, 2).transpose(0, 1).contiguous(), num_heads)
}

/// Splits a tensor of all tokens, `[tokens, ..]`, into one block for each rank's tokens, `[n, t, ..]`. The
/// last block is padded with zeros.
fn by_rank(all: &Tensor, sp_group: &SpGroup) -> Tensor {
    let (num_tokens, num_ranks) = (all.size()[0], sp_group.shard().num_shards as i64);
    let padding = (-num_tokens).rem_euclid(num_ranks);
    all.detach().constant_pad_nd([0, 0, 0, 0, 0, padding]).unflatten(0, [num_ranks, -1])
}

/// Joins every rank's heads of local tokens, `[n, t, g, w]`, to the heads of a layer, `[t, h, w]`.
fn collect_heads(blocks: &Tensor) -> Tensor {
    blocks.transpose(0, 1).contiguous().flatten(1, 2)
}
