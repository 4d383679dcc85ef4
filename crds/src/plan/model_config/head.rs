//! The head of a model: what it computes from the hidden state of a token.

use serde_json::Value;

use super::{Family, ModelConfig, TensorShape};

/// Weight of a classifier's head.
pub const SCORE_WEIGHT: &str = "score.weight";
/// Bias of a token classifier's head.
pub const SCORE_BIAS: &str = "score.bias";

/// Which head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutputHead {
    /// Scores of every next token: `...ForCausalLM`.
    #[default]
    Vocabulary,
    /// One number a sequence, read at its last token: `...ForSequenceClassification` with one label.
    Sequence,
    /// Two numbers a token, wrong and right, with a bias: `...ForTokenClassification` with two labels.
    Tokens,
}

impl OutputHead {
    /// The classifier that a `config.json` names; `None` for a model without a classifier's head.
    pub fn of_classifier(document: &Value) -> Option<(Self, Family)> {
        let class = document["architectures"][0].as_str()?;
        let named = |family: &Family, head: Self| head.class(*family) == class;
        [Self::Sequence, Self::Tokens]
            .into_iter()
            .find_map(|head| Some((head, Family::all().find(|family| named(family, head))?)))
    }

    /// The class of transformers that has this head on a family's body.
    pub fn class(self, family: Family) -> String {
        match self {
            Self::Vocabulary => family.architecture().to_owned(),
            Self::Sequence => family.classifier().to_owned(),
            Self::Tokens => family.classifier().replace("ForSequence", "ForToken"),
        }
    }

    /// Numbers that a classifier computes; 0 for other heads.
    pub fn num_labels(self) -> usize {
        match self {
            Self::Vocabulary => 0,
            Self::Sequence => 1,
            Self::Tokens => 2,
        }
    }
}

impl ModelConfig {
    /// The same body with another head. Labels are computed from the final norm itself: what scales the
    /// logits of tokens does not reach them.
    #[must_use]
    pub fn with_head(self, head: OutputHead) -> Self {
        match head {
            OutputHead::Vocabulary => Self { head, ..self },
            OutputHead::Sequence | OutputHead::Tokens => {
                Self { head, tie_word_embeddings: false, logit_scale: 1.0, ..self }
            }
        }
    }

    /// Rows of the head: numbers that it computes for a token.
    pub fn head_rows(&self) -> usize {
        match self.head {
            OutputHead::Vocabulary => self.vocab_size,
            OutputHead::Sequence | OutputHead::Tokens => self.head.num_labels(),
        }
    }

    /// Name of the head's weight in a checkpoint.
    pub fn head_name(&self) -> &'static str {
        if self.head == OutputHead::Vocabulary { "lm_head.weight" } else { SCORE_WEIGHT }
    }

    /// The tensors of the head; none where it is the embedding.
    pub(super) fn head_tensors(&self) -> Vec<TensorShape> {
        let tensor = |name: &str, shape: Vec<usize>| TensorShape { name: name.to_owned(), shape };
        let weight = (!self.tie_word_embeddings)
            .then(|| tensor(self.head_name(), vec![self.head_rows(), self.hidden_size]));
        let bias =
            (self.head == OutputHead::Tokens).then(|| tensor(SCORE_BIAS, vec![self.head.num_labels()]));
        weight.into_iter().chain(bias).collect()
    }
}
