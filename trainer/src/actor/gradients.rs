//! Gradients that the backward pass does not make by autograd: those of the embedding and of the head.
//!
//! The head gets its gradient chunk by chunk and the embedding by scatter, both into the leaf's own gradient, so that no
//! `[v, d]` tensor of zeros is made for every micro-batch. Between updates no gradient takes memory. Nothing here changes
//! a parameter.
//!
//! Legend of shapes: t tokens, d hidden size, v vocabulary.

use tch::{Kind, Tensor, no_grad};

use crate::model::Decoder;

/// The leaves whose gradients are filled by hand; `None` where the weight is frozen.
#[derive(Debug)]
pub struct OuterGradients {
    /// The embedding, `[v, d]`; with tied weights the head too.
    embedding_vd: Option<Leaf>,
    /// A head with weights of its own, `[v, d]`.
    head_vd: Option<Leaf>,
    is_tied: bool,
}

/// A weight and its gradient, which is there while an update gathers.
#[derive(Debug)]
struct Leaf {
    weight: Tensor,
    gradient: Option<Tensor>,
}

impl Leaf {
    fn gradient(&mut self) -> &mut Tensor {
        let Self { weight, gradient } = self;
        gradient.get_or_insert_with(|| {
            let zeros = weight.detach().zeros_like();
            rlt_torch::set_grad(weight, Some(&zeros));
            zeros
        })
    }
}

impl OuterGradients {
    /// The weights that `decoder` trains outside of its layers.
    pub fn new(decoder: &Decoder) -> Self {
        let parameters = decoder.trainable_parameters();
        let leaf = |wanted: &str| {
            let (_, weight) = parameters.iter().find(|(name, _)| name == wanted)?;
            Some(Leaf { weight: weight.shallow_clone(), gradient: None })
        };
        Self {
            embedding_vd: leaf("model.embed_tokens.weight"),
            head_vd: leaf("lm_head.weight"),
            is_tied: decoder.config.tie_word_embeddings,
        }
    }

    /// Lets go of the gradients, once the leaves have lost theirs.
    pub fn clear(&mut self) {
        let leaves = [&mut self.embedding_vd, &mut self.head_vd];
        leaves.into_iter().flatten().for_each(|leaf| leaf.gradient = None);
    }

    /// Whether the embedding is trained, so that the first layer's input gradient is wanted.
    pub fn wants_embedding(&self) -> bool {
        self.embedding_vd.is_some()
    }

    /// The gradient that the loss head adds to, if the head is trained.
    pub fn head_mut(&mut self) -> Option<&mut Tensor> {
        let leaf = if self.is_tied { &mut self.embedding_vd } else { &mut self.head_vd };
        leaf.as_mut().map(Leaf::gradient)
    }

    /// Adds the gradient of embedded tokens, `[t, d]`, to the embedding's rows of those tokens, `[t]` i64. The row of
    /// the padding token gets none, as in transformers.
    pub fn scatter_embedding(&mut self, decoder: &Decoder, tokens_t: &Tensor, grad_td: &Tensor) {
        let Some(embedding_vd) = self.embedding_vd.as_mut().map(Leaf::gradient) else { return };
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
