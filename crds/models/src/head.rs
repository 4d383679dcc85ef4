//! Output head of a model: the values that it computes from the hidden state of a token.

use serde_json::Value;

use super::{Family, ModelConfig, OutputHead, TensorShape, families};

/// Name of the weight of a head that gives logits of tokens.
pub const HEAD_WEIGHT: &str = "lm_head.weight";
/// Name of the weight of a classifier's head.
pub const SCORE_WEIGHT: &str = "score.weight";
/// Name of the bias of a token classifier's head.
pub const SCORE_BIAS: &str = "score.bias";

/// Returns the kind of head and the family of the classifier that a `config.json` names; `None` for other
/// models.
pub fn classifier_head(document: &Value) -> Option<(OutputHead, Family)> {
    let class = document["architectures"][0].as_str()?;
    let named = |family: &Family, head: OutputHead| class_of(head, *family) == class;
    [OutputHead::Sequence, OutputHead::Tokens]
        .into_iter()
        .find_map(|head| Some((head, Family::all().find(|family| named(family, head))?)))
}

/// Returns the transformers class that has this head on a family's body.
pub(super) fn class_of(head: OutputHead, family: Family) -> String {
    let definition = families::definition(family);
    match head {
        OutputHead::Vocabulary => definition.architecture.to_owned(),
        OutputHead::Sequence => definition.classifier.to_owned(),
        OutputHead::Tokens => definition.classifier.replace("ForSequence", "ForToken"),
    }
}

impl ModelConfig {
    /// Replaces the head. A classifier reads the final norm directly, so scale and cap of token logits are
    /// removed.
    #[must_use]
    pub fn with_head(self, head: OutputHead) -> Self {
        match head {
            OutputHead::Vocabulary => Self { head, ..self },
            OutputHead::Sequence | OutputHead::Tokens => {
                Self { head, tie_word_embeddings: false, logit_scale: 1.0, logit_softcap: None, ..self }
            }
        }
    }

    /// Number of rows of the head: values that it computes for a token.
    pub fn head_rows(&self) -> usize {
        match self.head {
            OutputHead::Vocabulary => self.vocab_size,
            OutputHead::Sequence | OutputHead::Tokens => self.head.num_labels(),
        }
    }

    /// Returns the name of the head's weight in a checkpoint.
    pub fn head_name(&self) -> &'static str {
        if self.head == OutputHead::Vocabulary { HEAD_WEIGHT } else { SCORE_WEIGHT }
    }

    /// Returns the tensors of the head; none if it is tied to the embedding.
    pub(super) fn head_tensors(&self) -> Vec<TensorShape> {
        let tensor = |name: &str, shape: Vec<usize>| TensorShape { name: name.to_owned(), shape };
        let weight = (!self.tie_word_embeddings)
            .then(|| tensor(self.head_name(), vec![self.head_rows(), self.hidden_size]));
        let bias =
            (self.head == OutputHead::Tokens).then(|| tensor(SCORE_BIAS, vec![self.head.num_labels()]));
        weight.into_iter().chain(bias).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn policy() -> ModelConfig {
        let document = json!({
            "architectures": ["GraniteForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
            "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100, "logits_scaling": 8.0,
            "tie_word_embeddings": true
        });
        ModelConfig::from_json(&document).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn a_classifier_is_written_with_its_class_and_labels_and_read_back() {
        for (head, class, num_labels) in [
            (OutputHead::Sequence, "GraniteForSequenceClassification", 1),
            (OutputHead::Tokens, "GraniteForTokenClassification", 2),
        ] {
            let config = policy().with_head(head);
            let document = config.to_json("float32");
            assert_eq!(document["architectures"], json!([class]));
            assert_eq!(document["id2label"].as_object().map(serde_json::Map::len), Some(num_labels));
            assert_eq!(classifier_head(&document), Some((head, Family::Granite)));
            let body = ModelConfig::from_classifier_json(&document).map(|body| body.with_head(head));
            assert_eq!(body, Ok(config));
        }
        assert_eq!(classifier_head(&policy().to_json("float32")), None);
    }

    #[test]
    fn a_classifier_has_a_row_for_each_label_and_a_bias_where_it_judges_tokens() {
        let count = |head| policy().with_head(head).parameter_count().head;
        assert_eq!(
            [OutputHead::Vocabulary, OutputHead::Sequence, OutputHead::Tokens].map(count),
            [0, 64, 130]
        );
        let names = |head| -> Vec<String> {
            let tensors = policy().with_head(head).tensors();
            tensors.into_iter().map(|tensor| tensor.name).filter(|name| name.starts_with("score")).collect()
        };
        assert_eq!(names(OutputHead::Sequence), [SCORE_WEIGHT]);
        assert_eq!(names(OutputHead::Tokens), [SCORE_WEIGHT, SCORE_BIAS]);
    }
}
