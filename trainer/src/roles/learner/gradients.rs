//! Gradients that autograd does not compute: those of embedding and head.
//!
//! The head gets its gradient chunk by chunk and the embedding by scatter, both into the leaf's gradient, so
//! that no `[v, d]` tensor of zeros is made for every micro-batch. Between updates no gradient takes memory.
//! Nothing here changes a parameter.
//!
//! Legend of shapes: t tokens, d hidden size, v vocabulary, k labels of a classifier, c positions that it
//! reads.

use rlt_decoder::{ADAPTED_MODEL, Decoder};
use rlt_models::{OutputHead, SCORE_BIAS};
use tch::{Kind, Tensor, no_grad};

/// Leaves whose gradients are filled by hand; `None` if the weight is frozen.
#[derive(Debug)]
pub struct EmbeddingAndHeadGradients {
    /// Embedding, `[v, d]`, which is also the head if weights are tied.
    embedding_vd: Option<Tensor>,
    /// Untied head, `[v, d]`; that of a classifier is `[k, d]`.
    head_vd: Option<Tensor>,
    /// Bias of a classifier's head, `[k]`.
    bias_k: Option<Tensor>,
    is_tied: bool,
}

/// Returns the gradient of a leaf, and creates it as zeros at its first use in an update.
fn gradient(leaf: &Tensor) -> Tensor {
    if !leaf.grad().defined() {
        rlt_torch::set_grad(leaf, Some(&leaf.detach().zeros_like()));
    }
    leaf.grad()
}

impl EmbeddingAndHeadGradients {
    /// Selects the trained weights of `decoder` outside of its layers.
    pub fn new(decoder: &Decoder) -> Self {
        let parameters = decoder.trainable_parameters();
        let leaf = |wanted: &str| {
            // With an adapter, the trained weight is a copy under PEFT's name.
            let is_it = |name: &str| name.strip_prefix(ADAPTED_MODEL).unwrap_or(name) == wanted;
            let (_, weight) = parameters.iter().find(|(name, _)| is_it(name))?;
            Some(weight.shallow_clone())
        };
        Self {
            embedding_vd: leaf("model.embed_tokens.weight"),
            head_vd: leaf(decoder.config.head_name()),
            bias_k: leaf(SCORE_BIAS),
            is_tied: decoder.config.tie_word_embeddings && decoder.config.head == OutputHead::Vocabulary,
        }
    }

    /// Whether the embedding is trained, so that the first layer needs an input gradient.
    pub fn wants_embedding(&self) -> bool {
        self.embedding_vd.is_some()
    }

    /// Returns the gradient of the head, to which the loss head adds; `None` if the head is frozen.
    pub fn head(&self) -> Option<Tensor> {
        let leaf = if self.is_tied { &self.embedding_vd } else { &self.head_vd };
        leaf.as_ref().map(gradient)
    }

    /// Adds the gradient of a classifier's head, from the loss's derivatives with respect to its values, f32
    /// `[k, c]`, and the hidden states at these positions, `[c, d]`.
    pub fn add_labels(&self, derivative_kc: &Tensor, hidden_cd: &Tensor) {
        no_grad(|| {
            if let Some(mut grad_kd) = self.head_vd.as_ref().map(gradient) {
                let of_head = derivative_kc.matmul(&hidden_cd.to_kind(Kind::Float));
                let _ = grad_kd.g_add_(&of_head.to_kind(grad_kd.kind()));
            }
            if let Some(mut grad_k) = self.bias_k.as_ref().map(gradient) {
                let of_bias = derivative_kc.sum_dim_intlist(1, false, Kind::Float);
                let _ = grad_k.g_add_(&of_bias.to_kind(grad_k.kind()));
            }
        });
    }

    /// Adds the gradient of embedded tokens, `[t, d]`, to the embedding's rows of those tokens, `[t]` i64.
    /// The row of the padding token gets none, as in transformers. A tensor-parallel rank adds only to the
    /// rows of its own vocabulary shard.
    pub(crate) fn scatter_embedding(&self, decoder: &Decoder, tokens_t: &Tensor, grad_td: &Tensor) {
        let Some(mut embedding_vd) = self.embedding_vd.as_ref().map(gradient) else { return };
        no_grad(|| {
            let mut grad_td = grad_td.to_kind(Kind::Float) * decoder.embedding_scale();
            if let Some(pad) = decoder.config.pad_token_id {
                let is_pad = tokens_t.eq(i64::from(pad)).unsqueeze(1);
                grad_td = grad_td.masked_fill(&is_pad, 0.0);
            }
            let Some(own) = decoder.own_tokens(tokens_t) else {
                let _ = embedding_vd.index_add_(0, tokens_t, &grad_td);
                return;
            };
            let grad_td = grad_td.masked_fill(&own.is_other_t.unsqueeze(1), 0.0);
            let _ = embedding_vd.index_add_(0, &own.rows_t, &grad_td);
        });
    }
}
