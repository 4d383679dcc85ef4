//! Kinds of output heads, which follow from the kind of the algorithm.

/// Kind of output head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutputHead {
    /// Language-model head: logits of the next token (`...ForCausalLM`).
    #[default]
    Vocabulary,
    /// One score for each sequence, read at its last token (`...ForSequenceClassification` with one label).
    Sequence,
    /// Two logits for each token, wrong and right, with a bias (`...ForTokenClassification` with two labels).
    Tokens,
}

impl OutputHead {
    /// Number of labels of a classifier; 0 for a language model.
    pub fn num_labels(self) -> usize {
        match self {
            Self::Vocabulary => 0,
            Self::Sequence => 1,
            Self::Tokens => 2,
        }
    }
}
