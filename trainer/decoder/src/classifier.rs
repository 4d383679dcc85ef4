//! A decoder whose head gives a number for each label instead of each token: `...ForSequenceClassification`
//! with one label and `...ForTokenClassification` with two, as transformers and TRL save reward models. The
//! caller gives the labels their meaning.
//!
//! Legend of shapes: n positions that are read, k labels, t packed tokens, d hidden size.

use std::path::Path;

use rlt_core::types::TokenId;
use rlt_layout::TensorRun;
use rlt_models::{OutputHead, SCORE_BIAS};
use tch::{Kind, Tensor, no_grad};

use super::names::SCORE_HEAD;
use super::weights::Weights;
use super::{Adapter, Decoder, LoadOptions, ModelError, PackedInput};

/// A frozen classifier.
#[derive(Debug)]
pub struct Classifier {
    /// Decoder without a head for tokens; a tied embedding is never used as one.
    decoder: Decoder,
    head: OutputHead,
    /// Weight of the head, f32 `[k, d]`.
    weight_kd: Tensor,
    /// Bias of a token classifier's head, f32 `[k]`.
    bias_k: Option<Tensor>,
}

impl Classifier {
    /// Loads a classifier from a model folder, see `Weights::open_classifier`.
    ///
    /// # Errors
    /// [`ModelError`], with file and tensor.
    pub fn load(dir: &Path, options: &LoadOptions) -> Result<Self, ModelError> {
        let (weights, head) = Weights::open_classifier(dir)?;
        let decoder = Decoder::from_weights(&weights, options)?;
        Self::with_head(decoder, &weights, head)
    }

    /// Loads a classifier's head, with a decoder of meta tensors, see [`Decoder::meta`].
    ///
    /// # Errors
    /// [`ModelError`], with file and tensor.
    pub fn meta(weights: &Weights, head: OutputHead, options: &LoadOptions) -> Result<Self, ModelError> {
        Self::with_head(Decoder::meta(weights.config(), options)?, weights, head)
    }

    fn with_head(decoder: Decoder, weights: &Weights, head: OutputHead) -> Result<Self, ModelError> {
        let (width, num_labels) = (decoder.config.hidden_size as i64, head.num_labels() as i64);
        let filled = |name: &str, shape: &[i64]| -> Result<Tensor, ModelError> {
            let tensor = Tensor::zeros(shape, (Kind::Float, decoder.device()));
            weights.fill(&TensorRun::full(name, shape), &tensor.view(-1))?;
            Ok(tensor)
        };
        let weight_kd = filled(SCORE_HEAD, &[num_labels, width])?;
        let bias_k = match head {
            OutputHead::Tokens => Some(filled(SCORE_BIAS, &[num_labels])?),
            OutputHead::Vocabulary | OutputHead::Sequence => None,
        };
        Ok(Self { decoder, head, weight_kd, bias_k })
    }

    /// Returns the decoder without its head.
    pub fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    /// Kind of the head: for sequences or for tokens.
    pub fn head(&self) -> OutputHead {
        self.head
    }

    /// Computes the score of each sequence by a model with one label: f32 `[n]` on the model's device. As in
    /// transformers, it is read at the last token that is not padding. All sequences are computed in one
    /// packed pass.
    pub fn scores(&self, sequences: &[&[TokenId]]) -> Tensor {
        let starts = sequences.iter().scan(0, |start, sequence| {
            *start += sequence.len();
            Some(*start - sequence.len())
        });
        let ends = starts.zip(sequences).map(|(start, sequence)| (start + self.end_of(sequence)) as i64);
        let ends: Vec<i64> = ends.collect();
        let input = PackedInput::new(sequences, self.decoder.device());
        no_grad(|| self.numbers_of(&self.decoder.hidden_states(&input, Adapter::Off), &ends)).get(0)
    }

    /// Returns the index of the token at which the score of a sequence is read: the last one that is not
    /// padding.
    pub fn end_of(&self, sequence: &[TokenId]) -> usize {
        let pad = self.decoder.config.pad_token_id;
        sequence.iter().rposition(|token| Some(*token) != pad).unwrap_or(0)
    }

    /// Computes the labels' values, f32 `[k, n]`, at `positions` of hidden states after the final norm, `[t,
    /// d]`.
    pub fn numbers_of(&self, normed_td: &Tensor, positions: &[i64]) -> Tensor {
        let positions_n = Tensor::from_slice(positions).to_device(self.decoder.device());
        let read_nd = normed_td.index_select(0, &positions_n).to_kind(Kind::Float);
        let numbers_kn =
            self.weight_kd.unbind(0).iter().map(|weight_d| read_nd.mv(weight_d)).collect::<Vec<_>>();
        let numbers_kn = Tensor::stack(&numbers_kn, 0);
        self.bias_k.iter().fold(numbers_kn, |numbers_kn, bias_k| numbers_kn + bias_k.unsqueeze(1))
    }
}
