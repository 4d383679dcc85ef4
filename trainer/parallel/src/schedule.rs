//! The schedule over layers: the forward pass saves a state for each layer, and the backward pass walks these
//! states in reverse.
//!
//! ```text
//! tokens -> embed | leaf -> layer 0 -> | leaf -> layer 1 -> | ... | leaf -> final norm -> head (chunked)
//!                 '-- autograd graph --'                            '-- autograd graph --'
//! ```
//! Each layer is an autograd graph of its own: its input is a detached leaf, and its backward pass takes an
//! explicit gradient and returns one. Activation checkpointing, FSDP and offload use this instead of hooks:
//! this schedule decides between layers which tensors are kept, recomputed, gathered or offloaded, and models
//! contain none of it. Losses are defined elsewhere.
//!
//! ```text
//! FSDP         the root unit is unsharded for the whole pass
//!   forward    unshard layer, prefetch the next, compute, reshard     (the last layers stay unsharded)
//!   backward   unshard layer, prefetch the previous, compute, reduce-scatter its gradient, reshard
//! ```
//! The layers that stay unsharded between forward and backward pass are the last one, the last
//! `training.unshardedLayers`, or all with `training.reshardAfterForward: false`. They are the last layers
//! because the backward pass begins there.
//!
//! ```text
//! offload      with activation checkpointing: layer inputs alone are kept, in offload storage
//!   forward    compute, offload the input
//!   backward   wait for the input, prefetch the previous one, compute again, then backward
//! ```
//! A rank without a micro-batch still takes part in every all-gather, because collectives need all ranks. In
//! an expert-parallel group it also computes its experts for the other ranks. [`LayerPass`] describes the
//! exchanges inside a layer.
//!
//! Legend of shapes: t tokens of the packed micro-batch, d hidden size.

pub mod probe;
mod saved_layer;
mod vocabulary;

use std::path::Path;

use rlt_decoder::{Adapter, Decoder, DecoderLayer, LayerContext, PackedInput, TowerPass};
use rlt_torch::{OffloadStorage, backward};
use tch::{Tensor, no_grad};

use self::saved_layer::{SavedLayer, SavedState};
use crate::{
    AxisGroup, Boundary, ExpertParallel, FsdpUnit, LayerPass, RankError, Ranks, ShardedParameters, Styles,
    TensorParallel, Ulysses,
};

/// A decoder with its shards and sequence-parallel group, as passes need it.
#[derive(Clone, Copy, Debug)]
pub struct DecoderPass<'a> {
    /// The decoder, whose layers and root unit the pass computes.
    pub decoder: &'a Decoder,
    /// This rank's shards; `None` if the decoder is not sharded.
    pub shards: Option<&'a ShardedParameters>,
    /// The sequence-parallel group; `None` without sequence parallelism.
    pub sp_group: Option<&'a AxisGroup>,
}

impl<'a> DecoderPass<'a> {
    /// Returns the parallel styles of a pass. `num_tokens` is the number of packed tokens of all ranks of the
    /// sequence-parallel group.
    fn styles(&self, num_tokens: usize) -> Styles<'a> {
        let experts = self.shards.and_then(ShardedParameters::ep_group);
        Styles::default()
            .with(self.tensor_parallel())
            .with(self.sp_group.map(|group| Ulysses { group, num_tokens }))
            .with(experts.map(ExpertParallel))
    }

    /// Tensor-parallel group, whose ranks compute the same tokens with different shards of every weight;
    /// `None` without tensor parallelism.
    pub fn tensor_parallel(&self) -> Option<TensorParallel<'a>> {
        self.shards.and_then(ShardedParameters::tensor_parallel)
    }

    /// The input of the first layer, `[t, d]`, without a gradient.
    fn embed(
        &self,
        input: &PackedInput,
        context: &LayerContext,
        styles: &Styles<'_>,
    ) -> Result<Tensor, RankError> {
        no_grad(|| styles.forward_at(Boundary::Embedding, self.decoder.embed_input(input, context)))
    }

    /// Returns one entry for each pass of this rank: its micro-batches `own`, padded with `None` to the
    /// largest number of micro-batches of any rank. Without FSDP nothing is padded, because ranks need not
    /// make the same number of passes.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn passes<T>(&self, ranks: &Ranks, own: Vec<T>) -> Result<Vec<Option<T>>, RankError> {
        let num_own = own.len();
        let num_passes =
            if self.shards.is_some() { ranks.all_reduce_max(num_own as i64)? as usize } else { num_own };
        let mut passes: Vec<_> = own.into_iter().map(Some).collect();
        passes.resize_with(num_passes, || None);
        Ok(passes)
    }

    /// Begins a pass: unshards the root unit and prefetches the first layer.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost or memory is short.
    pub fn begin_pass(&self) -> Result<(), RankError> {
        let Some(shards) = self.shards else { return Ok(()) };
        shards.prefetch(FsdpUnit::Root)?;
        shards.prefetch(FsdpUnit::Layer(0))?;
        shards.unshard(FsdpUnit::Root)
    }

    /// Ends a pass: reshards the root unit.
    ///
    /// # Errors
    /// [`RankError::Shards`] if libtorch fails.
    pub fn end_pass(&self) -> Result<(), RankError> {
        self.shards.map_or(Ok(()), |shards| shards.reshard(FsdpUnit::Root))
    }

    /// Allocates gradients of the root unit, to which a backward pass adds.
    pub fn begin_outer_gradient(&self) {
        self.shards.iter().for_each(|shards| shards.begin_gradient(FsdpUnit::Root));
    }

    /// Starts the reduce-scatter of the root unit's gradients.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn end_outer_gradient(&self) -> Result<(), RankError> {
        self.shards.map_or(Ok(()), |shards| shards.end_gradient(FsdpUnit::Root))
    }

    /// Calls `compute` for every layer while it is unsharded, first to last. If `backward_follows`, the last
    /// layers stay unsharded.
    fn forward(
        &self,
        backward_follows: bool,
        mut compute: impl FnMut(&DecoderLayer) -> Result<(), RankError>,
    ) -> Result<(), RankError> {
        let layers = self.decoder.layers();
        for (idx, layer) in layers.iter().enumerate() {
            let next = Some(idx + 1).filter(|next| *next < layers.len());
            self.unshard_layer(idx, next)?;
            compute(layer)?;
            if let Some(shards) =
                self.shards.filter(|shards| !(backward_follows && shards.stays_unsharded(idx)))
            {
                shards.reshard(FsdpUnit::Layer(idx))?;
            }
        }
        Ok(())
    }

    /// Calls `compute` for every layer's backward pass while the layer is unsharded, last to first.
    fn backward(
        &self,
        mut compute: impl FnMut(&DecoderLayer) -> Result<(), RankError>,
    ) -> Result<(), RankError> {
        for (idx, layer) in self.decoder.layers().iter().enumerate().rev() {
            self.unshard_layer(idx, idx.checked_sub(1))?;
            self.shards.iter().for_each(|shards| shards.begin_gradient(FsdpUnit::Layer(idx)));
            compute(layer)?;
            if let Some(shards) = self.shards {
                shards.end_gradient(FsdpUnit::Layer(idx))?;
                shards.reshard(FsdpUnit::Layer(idx))?;
            }
        }
        Ok(())
    }

    /// Unshards a layer and prefetches `next`, which is gathered while this one computes.
    fn unshard_layer(&self, layer_idx: usize, next: Option<usize>) -> Result<(), RankError> {
        let Some(shards) = self.shards else { return Ok(()) };
        shards.unshard(FsdpUnit::Layer(layer_idx))?;
        next.map_or(Ok(()), |next| shards.prefetch(FsdpUnit::Layer(next)))
    }

    /// Takes part in the collectives of a forward pass without a micro-batch.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost or memory is short.
    pub fn join_forward(&self, adapter: Adapter) -> Result<(), RankError> {
        self.begin_pass()?;
        let styles = self.styles(0);
        let join = |layer: &DecoderLayer| LayerPass::join(layer, self.decoder, adapter, &styles).map(drop);
        no_grad(|| self.forward(false, join))?;
        self.end_pass()
    }

    /// Takes part in the collectives of a forward and backward pass without a micro-batch. Gradients are zero
    /// except those of this rank's experts. `recomputes` says whether layers run again in the backward pass.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost or memory is short.
    pub fn join_forward_backward(&self, recomputes: bool) -> Result<(), RankError> {
        let styles = self.styles(0);
        let join = |layer: &DecoderLayer| LayerPass::join(layer, self.decoder, Adapter::On, &styles);
        let mut kept = Vec::new();
        self.begin_pass()?;
        self.forward(true, |layer| {
            kept.push(if recomputes { no_grad(|| join(layer))?.and(None) } else { join(layer)? });
            Ok(())
        })?;
        self.begin_outer_gradient();
        self.backward(|layer| {
            let kept = kept.pop().flatten();
            let pass = if recomputes { join(layer)? } else { kept };
            pass.map_or(Ok(()), |pass| pass.backward(None).map(drop))
        })?;
        self.end_pass()?;
        self.end_outer_gradient()
    }
}

/// Settings of what a forward pass keeps for its backward pass.
#[derive(Clone, Copy, Debug)]
pub struct SaveOptions<'a> {
    /// Whether only layer inputs are kept, and the rest is recomputed (activation checkpointing).
    pub inputs_only: bool,
    /// Whether the embedding is trained, so that the first layer's input needs a gradient.
    pub embedding_gradient: bool,
    /// Folder of the offload storage for layer inputs; `None` if they stay on the device.
    pub offload_to: Option<&'a Path>,
}

/// The forward pass of one micro-batch, ready for its backward pass.
#[derive(Debug)]
pub struct SavedForward<'a> {
    layers: Vec<SavedLayer<'a>>,
    /// Vision-tower pass over the images; `None` unless their features need a gradient.
    tower: Option<TowerPass>,
    norm_input_td: Tensor,
    /// Hidden states after the final norm, `[t, d]`, with the final norm's graph.
    pub normed_td: Tensor,
}

/// Runs the decoder without gradients, and returns hidden states after the final norm, `[t, d]`. The pass
/// lasts until [`DecoderPass::end_pass`]. Image features are stored in `context`.
///
/// # Errors
/// [`RankError`] when a rank is lost or memory is short.
pub fn infer(
    model: DecoderPass<'_>,
    input: &PackedInput,
    context: &mut LayerContext,
) -> Result<Tensor, RankError> {
    no_grad(|| {
        model.begin_pass()?;
        context.features = model.decoder.placed_features(input, context.adapter);
        let context = &*context;
        let styles = model.styles(context.num_tokens());
        let mut hidden_td = model.embed(input, context, &styles)?;
        model.forward(false, |layer| {
            hidden_td = LayerPass::run(layer, hidden_td.shallow_clone(), context, &styles)?.output_td;
            Ok(())
        })?;
        Ok(model.decoder.final_norm(&hidden_td, context.adapter))
    })
}

/// Runs the decoder and keeps what the backward pass needs: every layer's graph, or only its input. The pass
/// lasts until [`DecoderPass::end_pass`]. Image features are stored in `context`.
///
/// # Errors
/// [`RankError`] when a rank is lost, memory is short, or layer inputs cannot be offloaded.
pub fn forward<'a>(
    model: DecoderPass<'a>,
    input: &PackedInput,
    context: &mut LayerContext,
    keep: SaveOptions<'_>,
) -> Result<SavedForward<'a>, RankError> {
    model.begin_pass()?;
    let (features, tower) = model.decoder.trained_features(input, context, keep.inputs_only);
    context.features = features;
    let context = &*context;
    let styles = model.styles(context.num_tokens());
    let mut hidden_td = model.embed(input, context, &styles)?;
    let mut layers = Vec::with_capacity(model.decoder.layers().len());
    let place = keep.offload_to.map(|folder| OffloadStorage::new(folder, model.decoder.device()));
    let mut place = place.transpose().map_err(RankError::Activations)?;
    // The embedding of a model with frozen weights needs no gradient, so the first layer need not compute it.
    let mut wants_input_gradient = keep.embedding_gradient || tower.is_some();
    model.forward(true, |layer| {
        let input_td = hidden_td.detach().set_requires_grad(wants_input_gradient);
        wants_input_gradient = true;
        let run = |input_td| LayerPass::run(layer, input_td, context, &styles);
        if keep.inputs_only {
            hidden_td = no_grad(|| run(input_td.shallow_clone()))?.output_td;
            layers.push(SavedLayer::of_input(input_td, place.as_mut())?);
        } else {
            let pass = run(input_td)?;
            hidden_td = pass.output_td.detach();
            layers.push(SavedLayer::Resident(SavedState::Graph(pass)));
        }
        Ok(())
    })?;
    let norm_input_td = hidden_td.detach().set_requires_grad(true);
    let normed_td = model.decoder.final_norm(&norm_input_td, context.adapter);
    Ok(SavedForward { layers, tower, norm_input_td, normed_td })
}

/// Propagates the gradient of the normed hidden states, `[t, d]`, back through all layers. The layers'
/// parameters accumulate their gradients, and so do a vision tower's. Returns the gradient of the embedded
/// tokens, if the first layer's input needs one.
///
/// # Errors
/// [`RankError`] when a rank is lost, memory is short, or offloaded layer inputs cannot be prefetched.
pub fn backward_through(
    model: DecoderPass<'_>,
    tape: SavedForward<'_>,
    context: &LayerContext,
    grad_normed_td: &Tensor,
) -> Result<Option<Tensor>, RankError> {
    backward(&tape.normed_td, grad_normed_td);
    let SavedForward { mut layers, tower, norm_input_td, normed_td } = tape;
    let mut grad_td = Some(norm_input_td.grad());
    drop((normed_td, norm_input_td));
    let styles = model.styles(context.num_tokens());
    let mut next = layers.pop().map(SavedLayer::prefetch).transpose()?;
    model.backward(|layer| {
        let Some(prefetched) = next.take() else { return Ok(()) };
        let held = prefetched.wait()?;
        next = layers.pop().map(SavedLayer::prefetch).transpose()?;
        let pass = held.pass(|input_td| LayerPass::run(layer, input_td, context, &styles))?;
        if let Some(output_grad_td) = grad_td.take() {
            grad_td = pass.backward(Some(&output_grad_td))?;
        }
        Ok(())
    })?;
    if let Some(tower) = tower {
        tower.backward(model.decoder, grad_td.as_ref());
    }
    Ok(grad_td)
}
