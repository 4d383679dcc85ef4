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
//! Legend of shapes: t tokens of the packed micro-batch, d hidden size.

use rlt_torch::backward;
use tch::{Tensor, no_grad};

use crate::model::{Decoder, LayerContext, PackedInput};

/// What the forward pass keeps of a layer for the backward pass.
#[derive(Debug)]
enum Island {
    /// The graph itself: nothing is computed again.
    Kept { input_td: Tensor, output_td: Tensor },
    /// The input alone: the layer runs again in the backward pass.
    Recomputed { input_td: Tensor },
}

/// What a forward pass must leave for its backward pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct Keep {
    /// Activation checkpointing: keep layer inputs and compute the rest again.
    pub inputs_only: bool,
    /// The embedding is trained: the first layer's input needs a gradient.
    pub embedding_gradient: bool,
}

/// The forward pass of one micro-batch, ready for its backward pass.
#[derive(Debug)]
pub(super) struct Tape {
    islands: Vec<Island>,
    norm_input_td: Tensor,
    /// Hidden states after the final norm, `[t, d]`, with the final norm's graph behind them.
    pub normed_td: Tensor,
}

/// Runs the decoder without gradients; hidden states after the final norm, `[t, d]`.
pub(super) fn infer(decoder: &Decoder, input: &PackedInput, context: &LayerContext) -> Tensor {
    no_grad(|| {
        let mut hidden_td = decoder.embed(&input.tokens);
        for layer in decoder.layers() {
            hidden_td = layer.forward(&hidden_td, context);
        }
        decoder.final_norm(&hidden_td)
    })
}

/// Runs the decoder and keeps what the backward pass needs: every layer's graph or only
/// its input.
pub(super) fn forward(decoder: &Decoder, input: &PackedInput, context: &LayerContext, keep: Keep) -> Tape {
    let mut hidden_td = no_grad(|| decoder.embed(&input.tokens));
    let mut islands = Vec::with_capacity(decoder.layers().len());
    // The embedding of a model with frozen weights has no use for a gradient, and the first layer need not make it.
    let mut wants_input_gradient = keep.embedding_gradient;
    for layer in decoder.layers() {
        let input_td = hidden_td.detach().set_requires_grad(wants_input_gradient);
        wants_input_gradient = true;
        if keep.inputs_only {
            hidden_td = no_grad(|| layer.forward(&input_td, context));
            islands.push(Island::Recomputed { input_td });
        } else {
            let output_td = layer.forward(&input_td, context);
            hidden_td = output_td.detach();
            islands.push(Island::Kept { input_td, output_td });
        }
    }
    let norm_input_td = hidden_td.detach().set_requires_grad(true);
    let normed_td = decoder.final_norm(&norm_input_td);
    Tape { islands, norm_input_td, normed_td }
}

/// Carries the gradient of the normed hidden states, `[t, d]`, back through all layers. The layers' parameters
/// accumulate theirs; the gradient of the embedded tokens is returned where the embedding is trained.
pub(super) fn backward_through(
    decoder: &Decoder,
    tape: Tape,
    context: &LayerContext,
    grad_normed_td: &Tensor,
) -> Option<Tensor> {
    backward(&tape.normed_td, grad_normed_td);
    let mut grad_td = tape.norm_input_td.grad();
    drop((tape.normed_td, tape.norm_input_td));
    for (layer, island) in decoder.layers().iter().zip(tape.islands).rev() {
        let (input_td, output_td) = match island {
            Island::Kept { input_td, output_td } => (input_td, output_td),
            Island::Recomputed { input_td } => {
                let output_td = layer.forward(&input_td, context);
                (input_td, output_td)
            }
        };
        backward(&output_td, &grad_td);
        if !input_td.requires_grad() {
            return None;
        }
        grad_td = input_td.grad();
    }
    Some(grad_td)
}
