//! The schedule over layers: forward keeps a tape, backward walks it in reverse.
//!
//! ```text
//! tokens -> embed | leaf -> layer 0 -> | leaf -> layer 1 -> | ... | leaf -> final norm -> head (chunked)
//!                 '---- island -------'                            '---- island -----'
//! ```
//! Each layer is an autograd island: its input is a detached leaf, and its backward pass takes an explicit
//! gradient and hands one on. So what is kept, recomputed, gathered or moved is decided here, between layers,
//! and never inside a model. Nothing here knows a loss.
//!
//! ```text
//! sharded      outer comes and stays for the pass
//!   forward    layer comes, the next one sets out, layer computes, layer goes     (the last one stays)
//!   backward   layer comes, the one before sets out, layer computes, its gradient goes to all, layer goes
//! ```
//! ```text
//! at rest      inputs alone are kept, away from the device
//!   forward    layer computes, its input goes
//!   backward   input comes, the one before sets out, layer computes again, then back
//! ```
//! A rank that has nothing to compute passes by: its layers come and go all the same, for each coming is an
//! exchange. Where ranks share a stream of tokens, a layer has exchanges of its own, see [`pass`].
//!
//! Legend of shapes: t tokens of the packed micro-batch, d hidden size.

mod kept;
mod pass;

use std::path::Path;

use rlt_torch::{RestingPlace, backward};
use tch::{Tensor, no_grad};

use self::kept::{Held, Island};
use self::pass::LayerPass;
use crate::model::{Decoder, DecoderLayer, LayerContext, PackedInput};
use crate::parallel::{Part, RankError, Ranks, ShardedParameters, StreamRanks};

/// A decoder for one pass: all of its weights are here, or they come and go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Model<'a> {
    pub decoder: &'a Decoder,
    /// `None` where every rank has the whole.
    pub shards: Option<&'a ShardedParameters>,
    /// The ranks that compute parts of the same tokens; `None` where all tokens are this rank's.
    pub stream: Option<&'a StreamRanks>,
}

impl Model<'_> {
    /// As many passes as the rank with the most micro-batches makes: this rank's `own`, then `None`. Where no
    /// weights come and go, nobody needs to wait for anybody.
    pub(crate) fn passes<T>(&self, ranks: &Ranks, own: Vec<T>) -> Result<Vec<Option<T>>, RankError> {
        let num_own = own.len();
        let num_passes = if self.shards.is_some() { ranks.max(num_own as i64)? as usize } else { num_own };
        let mut passes: Vec<_> = own.into_iter().map(Some).collect();
        passes.resize_with(num_passes, || None);
        Ok(passes)
    }

    /// Begins a pass: what is outside of the layers comes, and the first layer sets out.
    pub(crate) fn enter(&self) -> Result<(), RankError> {
        let Some(shards) = self.shards else { return Ok(()) };
        shards.begin(Part::Outer)?;
        shards.begin(Part::Layer(0))?;
        shards.need(Part::Outer)
    }

    /// Ends a pass: what is outside of the layers goes.
    pub(crate) fn leave(&self) -> Result<(), RankError> {
        self.shards.map_or(Ok(()), |shards| shards.release(Part::Outer))
    }

    /// Gives what is outside of the layers gradients to add to.
    pub(crate) fn begin_outer_gradient(&self) {
        self.shards.iter().for_each(|shards| shards.begin_gradient(Part::Outer));
    }

    /// Sends the gradients of what is outside of the layers to their shards.
    pub(crate) fn end_outer_gradient(&self) -> Result<(), RankError> {
        self.shards.map_or(Ok(()), |shards| shards.end_gradient(Part::Outer))
    }

    /// Lets every layer `compute` while it is here, first to last.
    fn forward(
        &self,
        last_stays: bool,
        mut compute: impl FnMut(&DecoderLayer) -> Result<(), RankError>,
    ) -> Result<(), RankError> {
        let layers = self.decoder.layers();
        for (idx, layer) in layers.iter().enumerate() {
            let next = Some(idx + 1).filter(|next| *next < layers.len());
            self.bring(idx, next)?;
            compute(layer)?;
            if let (Some(shards), true) = (self.shards, next.is_some() || !last_stays) {
                shards.release(Part::Layer(idx))?;
            }
        }
        Ok(())
    }

    /// Lets every layer `compute` its gradients while it is here, last to first.
    fn backward(
        &self,
        mut compute: impl FnMut(&DecoderLayer) -> Result<(), RankError>,
    ) -> Result<(), RankError> {
        for (idx, layer) in self.decoder.layers().iter().enumerate().rev() {
            self.bring(idx, idx.checked_sub(1))?;
            self.shards.iter().for_each(|shards| shards.begin_gradient(Part::Layer(idx)));
            compute(layer)?;
            if let Some(shards) = self.shards {
                shards.end_gradient(Part::Layer(idx))?;
                shards.release(Part::Layer(idx))?;
            }
        }
        Ok(())
    }

    /// Returns when a layer is here; `next` sets out, to arrive while this one computes.
    fn bring(&self, layer_idx: usize, next: Option<usize>) -> Result<(), RankError> {
        let Some(shards) = self.shards else { return Ok(()) };
        shards.need(Part::Layer(layer_idx))?;
        next.map_or(Ok(()), |next| shards.begin(Part::Layer(next)))
    }

    /// Takes part in a pass without gradients, without anything to compute.
    pub(crate) fn pass_by(&self) -> Result<(), RankError> {
        self.enter()?;
        self.forward(false, |_| Ok(()))?;
        self.leave()
    }

    /// Takes part in a pass forward and back, adding gradients of zero.
    pub(crate) fn pass_by_with_gradients(&self) -> Result<(), RankError> {
        self.enter()?;
        self.forward(true, |_| Ok(()))?;
        self.begin_outer_gradient();
        self.backward(|_| Ok(()))?;
        self.leave()?;
        self.end_outer_gradient()
    }
}

/// What a forward pass must leave for its backward pass.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keep<'a> {
    /// Activation checkpointing: keep layer inputs and compute the rest again.
    pub inputs_only: bool,
    /// The embedding is trained: the first layer's input needs a gradient.
    pub embedding_gradient: bool,
    /// Where layer inputs that are all that is kept rest; `None` where they stay.
    pub rest_in: Option<&'a Path>,
}

/// The forward pass of one micro-batch, ready for its backward pass.
#[derive(Debug)]
pub(crate) struct Tape {
    islands: Vec<Island>,
    norm_input_td: Tensor,
    /// Hidden states after the final norm, `[t, d]`, with the final norm's graph behind them.
    pub normed_td: Tensor,
}

/// Runs the decoder without gradients; hidden states after the final norm, `[t, d]`. The pass goes on until
/// [`Model::leave`].
pub(crate) fn infer(
    model: Model<'_>,
    input: &PackedInput,
    context: &LayerContext,
) -> Result<Tensor, RankError> {
    no_grad(|| {
        model.enter()?;
        let mut hidden_td = model.decoder.embed(&input.tokens);
        model.forward(false, |layer| {
            hidden_td = LayerPass::run(layer, hidden_td.shallow_clone(), context, model.stream)?.output_td;
            Ok(())
        })?;
        Ok(model.decoder.final_norm(&hidden_td))
    })
}

/// Runs the decoder and keeps what the backward pass needs: every layer's graph or only
/// its input. The pass goes on until [`Model::leave`].
pub(crate) fn forward(
    model: Model<'_>,
    input: &PackedInput,
    context: &LayerContext,
    keep: Keep<'_>,
) -> Result<Tape, RankError> {
    model.enter()?;
    let mut hidden_td = no_grad(|| model.decoder.embed(&input.tokens));
    let mut islands = Vec::with_capacity(model.decoder.layers().len());
    let place = keep.rest_in.map(|folder| RestingPlace::new(folder, model.decoder.device()));
    let mut place = place.transpose().map_err(RankError::Activations)?;
    // The embedding of a model with frozen weights has no use for a gradient, and the first layer need not
    // make it.
    let mut wants_input_gradient = keep.embedding_gradient;
    model.forward(true, |layer| {
        let input_td = hidden_td.detach().set_requires_grad(wants_input_gradient);
        wants_input_gradient = true;
        let run = |input_td| LayerPass::run(layer, input_td, context, model.stream);
        if keep.inputs_only {
            hidden_td = no_grad(|| run(input_td.shallow_clone()))?.output_td;
            islands.push(Island::of_input(input_td, place.as_mut())?);
        } else {
            let pass = run(input_td)?;
            hidden_td = pass.output_td.detach();
            islands.push(Island::Here(Held::Graph(pass)));
        }
        Ok(())
    })?;
    let norm_input_td = hidden_td.detach().set_requires_grad(true);
    let normed_td = model.decoder.final_norm(&norm_input_td);
    Ok(Tape { islands, norm_input_td, normed_td })
}

/// Carries the gradient of the normed hidden states, `[t, d]`, back through all layers. The layers'
/// parameters accumulate theirs; the gradient of the embedded tokens is returned where the embedding is
/// trained.
pub(crate) fn backward_through(
    model: Model<'_>,
    tape: Tape,
    context: &LayerContext,
    grad_normed_td: &Tensor,
) -> Result<Option<Tensor>, RankError> {
    backward(&tape.normed_td, grad_normed_td);
    let Tape { mut islands, norm_input_td, normed_td } = tape;
    let mut grad_td = Some(norm_input_td.grad());
    drop((normed_td, norm_input_td));
    let mut next = islands.pop().map(Island::depart).transpose()?;
    model.backward(|layer| {
        let Some(departed) = next.take() else { return Ok(()) };
        let held = departed.arrive()?;
        next = islands.pop().map(Island::depart).transpose()?;
        let pass = held.pass(|input_td| LayerPass::run(layer, input_td, context, model.stream))?;
        if let Some(output_grad_td) = grad_td.take() {
            grad_td = pass.backward(&output_grad_td, model.stream)?;
        }
        Ok(())
    })?;
    Ok(grad_td)
}
