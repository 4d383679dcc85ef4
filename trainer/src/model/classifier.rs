//! A decoder with one number for a whole sequence instead of a token's scores: `...ForSequenceClassification`
//! with one label, as transformers and TRL save reward models. What the number is for is not known here.
//!
//! Legend of shapes: n sequences, t tokens of the packed stream, d hidden size.

use std::path::Path;

use rlt_core::tensor_shard::TensorShard;
use rlt_core::types::TokenId;
use tch::{Kind, Tensor, no_grad};

use super::weights::{SCORE_HEAD, Weights};
use super::{Adapter, Decoder, LoadOptions, ModelError, PackedInput};

/// A frozen sequence classifier with one label.
#[derive(Debug)]
pub struct SequenceClassifier {
    /// Its head for tokens does not exist; that of the tied embedding is never asked.
    decoder: Decoder,
    /// f32 `[d]`.
    score_d: Tensor,
}

impl SequenceClassifier {
    /// Reads a model folder, see [`Weights::open_classifier`].
    ///
    /// # Errors
    /// [`ModelError`], with file and tensor.
    pub fn load(dir: &Path, options: &LoadOptions) -> Result<Self, ModelError> {
        let weights = Weights::open_classifier(dir)?;
        let decoder = Decoder::from_weights(&weights, options)?;
        Self::with_head(decoder, &weights)
    }

    /// The shapes of a decoder, see [`Decoder::outline`], with its head.
    ///
    /// # Errors
    /// [`ModelError`], with file and tensor.
    pub(crate) fn outline(weights: &Weights, options: &LoadOptions) -> Result<Self, ModelError> {
        Self::with_head(Decoder::outline(weights.config(), options)?, weights)
    }

    fn with_head(decoder: Decoder, weights: &Weights) -> Result<Self, ModelError> {
        let width = decoder.config.hidden_size as i64;
        let score_d = Tensor::zeros([width], (Kind::Float, decoder.device()));
        weights.fill(&TensorShard::whole(SCORE_HEAD, &[1, width]), &score_d)?;
        Ok(Self { decoder, score_d })
    }

    /// Its decoder.
    pub fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    /// The number of each sequence, from the hidden state of its last token that is no padding, as
    /// transformers has it: f32 `[n]` on the model's device. All sequences go through in one packed pass.
    pub fn scores(&self, sequences: &[&[TokenId]]) -> Tensor {
        let input = PackedInput::new(sequences, self.decoder.device());
        no_grad(|| self.scores_of(&self.decoder.hidden_states(&input, Adapter::Off), sequences))
    }

    /// The same of hidden states after the final norm, `[t, d]`.
    pub(crate) fn scores_of(&self, normed_td: &Tensor, sequences: &[&[TokenId]]) -> Tensor {
        let pad = self.decoder.config.pad_token_id;
        let ends = sequences.iter().scan(0, |start, sequence| {
            let last = sequence.iter().rposition(|token| Some(*token) != pad).unwrap_or(0);
            let end = *start + last as i64;
            *start += sequence.len() as i64;
            Some(end)
        });
        let last_n = Tensor::from_slice(&ends.collect::<Vec<i64>>()).to_device(self.decoder.device());
        normed_td.index_select(0, &last_n).to_kind(Kind::Float).mv(&self.score_d)
    }
}
