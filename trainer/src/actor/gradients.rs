//! Gradients that the backward pass does not make by autograd: those of the embedding and of the head.
//!
//! The head gets its gradient chunk by chunk and the embedding by scatter, both into the leaf's own gradient, so that no
//! `[v, d]` tensor of zeros is made for every micro-batch. Nothing here changes a parameter.
//!
//! Legend of shapes: t tokens, d hidden size, v vocabulary.

use tch::{Kind, Tensor, no_grad};

use crate::model::Decoder;

/// Handles of the gradients that are filled by hand; `None` where the weight is frozen.
#[derive(Debug)]
pub struct OuterGradients {
    /// Gradient of the embedding, `[v, d]`; with tied weights of the head too.
    embedding_vd: Option<Tensor>,
    /// Gradient of a head with weights of its own, `[v, d]`.
    head_vd: Option<Tensor>,
    is_tied: bool,
}

impl OuterGradients {
    /// Gives the weights that `decoder` trains outside of its layers a gradient of zeros.
    pub fn new(decoder: &Decoder) -> Self {
        let parameters = decoder.trainable_parameters();
        let gradient = |wanted: &str| {
            let leaf = &parameters.iter().find(|(name, _)| name == wanted)?.1;
            // The one way to a gradient without shim: autograd makes it once, every later update reuses it.
            (leaf * 0.0).sum(Kind::Float).backward();
            Some(leaf.grad())
        };
        Self {
            embedding_vd: gradient("model.embed_tokens.weight"),
            head_vd: gradient("lm_head.weight"),
            is_tied: decoder.config.tie_word_embeddings,
        }
    }

    /// Whether the embedding is trained, so that the first layer's input gradient is wanted.
    pub fn wants_embedding(&self) -> bool {
        self.embedding_vd.is_some()
    }

    /// The gradient that the loss head adds to, if the head is trained.
    pub fn head_mut(&mut self) -> Option<&mut Tensor> {
        if self.is_tied { self.embedding_vd.as_mut() } else { self.head_vd.as_mut() }
    }

    /// Adds the gradient of embedded tokens, `[t, d]`, to the embedding's rows of those tokens, `[t]` i64. The row of
    /// the padding token gets none, as in transformers.
    pub fn scatter_embedding(&mut self, decoder: &Decoder, tokens_t: &Tensor, grad_td: &Tensor) {
        let Some(embedding_vd) = self.embedding_vd.as_mut() else { return };
        no_grad(|| {
            let mut grad_td = grad_td.to_kind(Kind::Float) * decoder.embedding_scale();
            if let Some(pad) = decoder.config.pad_token_id {
                let is_pad = tokens_t.eq(i64::from(pad)).unsqueeze(1);
                grad_td = grad_td.masked_fill(&is_pad, 0.0);
            }
            let _ = embedding_vd.index_add_(0, tokens_t, &grad_td);
        });
    }
}
