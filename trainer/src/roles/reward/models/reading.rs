//! Input of a reward model for a sample: tokens, and the positions of its scores.

use rlt_api::spec::{RewardModelInput, StepAggregation, StepRewardSpec};
use rlt_core::types::{Completion, FinishReason, Prompt, TokenId};
use rlt_data::steps::encode_steps;
use rlt_data::tokenizer::{ChatRequest, Tokenizer, TokenizerError};
use serde_json::{Value, json};

/// Builder of a reward model's inputs.
#[derive(Clone, Debug)]
pub(super) struct Reader {
    pub input: RewardModelInput,
    /// The model's tokenizer if it reads text, else the policy's.
    pub tokenizer: Tokenizer,
    /// Settings by which a process reward model splits completions into steps; `None` for a model of full
    /// completions.
    pub steps: Option<StepRewardSpec>,
    /// Largest number of tokens of an input. Longer inputs are cut at their beginning.
    pub max_tokens: usize,
}

/// Tokens of a sequence, and the positions at which scores are read; `None` means the last token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reading {
    pub tokens: Vec<TokenId>,
    pub positions: Option<Vec<usize>>,
}

impl Reader {
    /// Creates the model's input for a sample.
    ///
    /// # Errors
    /// If the text cannot be rendered or tokenized.
    pub(super) fn read(&self, prompt: &Prompt, completion: &Completion) -> Result<Reading, TokenizerError> {
        let Some(StepRewardSpec { separator, .. }) = &self.steps else {
            let tokens = match self.input {
                RewardModelInput::Tokens => [prompt.tokens.as_slice(), &completion.tokens].concat(),
                RewardModelInput::Text => self.text(prompt, completion)?,
            };
            return Ok(self.cut(Reading { tokens, positions: None }));
        };
        let separator = separator.as_deref().unwrap_or("\n");
        let mut tokens = match self.input {
            RewardModelInput::Tokens => prompt.tokens.clone(),
            RewardModelInput::Text => self.prompt(prompt)?,
        };
        let (steps, ends) = encode_steps(&self.tokenizer, steps_of(&completion.text, separator), separator)?;
        let positions = ends.iter().map(|end| tokens.len() + end - 1).collect();
        tokens.extend(steps);
        Ok(self.cut(Reading { tokens, positions: Some(positions) }))
    }

    /// Tokenizes prompt and completion for the model. A conversation is rendered by the model's chat
    /// template.
    fn text(&self, prompt: &Prompt, completion: &Completion) -> Result<Vec<TokenId>, TokenizerError> {
        if let Some(messages) = self.conversation(prompt) {
            let answer = json!({ "role": "assistant", "content": completion.text });
            let messages: Vec<Value> = messages.iter().cloned().chain([answer]).collect();
            return self.tokenizer.encode_rendered(&self.render(&messages, false)?);
        }
        let mut tokens = self.tokenizer.encode(&prompt.text)?;
        tokens.extend(self.tokenizer.encode_rendered(&completion.text)?);
        let ends = completion.finish_reason == FinishReason::Stop;
        tokens.extend(self.tokenizer.eos_ids().first().filter(|_| ends));
        Ok(tokens)
    }

    fn prompt(&self, prompt: &Prompt) -> Result<Vec<TokenId>, TokenizerError> {
        match self.conversation(prompt) {
            Some(messages) => self.tokenizer.encode_rendered(&self.render(messages, true)?),
            None => self.tokenizer.encode(&prompt.text),
        }
    }

    /// Returns the prompt's messages, if there are any and the model has a chat template.
    fn conversation<'p>(&self, prompt: &'p Prompt) -> Option<&'p Vec<Value>> {
        prompt.messages.as_array().filter(|_| self.tokenizer.has_chat_template())
    }

    fn render(&self, messages: &[Value], add_generation_prompt: bool) -> Result<String, TokenizerError> {
        let request = ChatRequest { messages, tools: None, add_generation_prompt, variables: None };
        self.tokenizer.render_chat(&request)
    }

    /// Removes the first tokens of an input that exceeds the model's context.
    fn cut(&self, reading: Reading) -> Reading {
        let Reading { mut tokens, positions } = reading;
        let num_cut = tokens.len().saturating_sub(self.max_tokens);
        tokens.drain(..num_cut);
        let kept = |positions: Vec<usize>| {
            positions.into_iter().filter_map(|position| position.checked_sub(num_cut)).collect()
        };
        Reading { tokens, positions: positions.map(kept) }
    }
}

/// Returns the non-empty steps of a completion; a single empty one if there are none.
fn steps_of<'t>(text: &'t str, separator: &str) -> Vec<&'t str> {
    let steps: Vec<&str> = text.split(separator).filter(|step| !step.trim().is_empty()).collect();
    if steps.is_empty() { vec![""] } else { steps }
}

/// Combines the probabilities that steps are right into one reward.
pub(super) fn aggregate(verdicts: &[f64], aggregation: StepAggregation) -> f64 {
    match aggregation {
        StepAggregation::Min => verdicts.iter().copied().fold(1.0, f64::min),
        StepAggregation::Last => verdicts.last().copied().unwrap_or(0.0),
        StepAggregation::Mean => verdicts.iter().sum::<f64>() / verdicts.len().max(1) as f64,
        StepAggregation::Product => verdicts.iter().product(),
    }
}

#[cfg(test)]
mod tests {
    use rlt_core::fixtures;

    use super::*;

    const CHATML: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }};{% endfor %}\
                          {% if add_generation_prompt %}<assistant>{% endif %}";

    fn tokenizer() -> Tokenizer {
        let printable: String = (' '..='~').chain(['\n']).collect();
        Tokenizer::characters(&printable).unwrap().with_chat_template(CHATML).unwrap()
    }

    fn reader(input: RewardModelInput, steps: Option<StepRewardSpec>) -> Reader {
        Reader { input, tokenizer: tokenizer(), steps, max_tokens: 100 }
    }

    fn prompt(text: &str, messages: Value) -> Prompt {
        Prompt { text: text.into(), messages, ..Prompt::from_tokens(0, vec![90, 91]) }
    }

    fn completion(text: &str) -> Completion {
        fixtures::completion(&[92, 93, 94], text)
    }

    fn shown(reading: &Reading) -> String {
        tokenizer().decode_verbatim(&reading.tokens).unwrap()
    }

    #[test]
    fn tokens_are_the_policys_and_texts_the_models_own() {
        let (plain, answer) = (prompt("q?", Value::Null), completion("yes"));
        let tokens = reader(RewardModelInput::Tokens, None).read(&plain, &answer).unwrap();
        assert_eq!(tokens, Reading { tokens: vec![90, 91, 92, 93, 94], positions: None });
        let read = |prompt: &Prompt| reader(RewardModelInput::Text, None).read(prompt, &answer).unwrap();
        assert_eq!(shown(&read(&plain)), "<bos>q?yes<eos>");
        let chat = prompt("another template", json!([{ "role": "user", "content": "q?" }]));
        assert_eq!(shown(&read(&chat)), "<user>q?;<assistant>yes;");
    }

    #[test]
    fn steps_are_read_at_the_last_token_of_their_separators() {
        let steps = StepRewardSpec { separator: Some("\n\n".into()), ..StepRewardSpec::default() };
        let reader = reader(RewardModelInput::Text, Some(steps));
        let reading = reader.read(&prompt("q", Value::Null), &completion("ab\n\n\n\nc")).unwrap();
        assert_eq!(shown(&reading), "<bos>qab\n\nc\n\n");
        assert_eq!(reading.positions, Some(vec![5, 8]));
        let empty = reader.read(&prompt("q", Value::Null), &completion("")).unwrap();
        assert_eq!(empty.positions, Some(vec![3]));
        let short = Reader { max_tokens: 4, ..reader };
        let reading = short.read(&prompt("q", Value::Null), &completion("ab\n\nc")).unwrap();
        assert_eq!((shown(&reading).as_str(), reading.positions), ("\nc\n\n", Some(vec![0, 3])));
    }

    #[test]
    fn verdicts_on_steps_become_one_reward() {
        let of = |aggregation| aggregate(&[0.5, 0.25, 1.0], aggregation);
        assert_eq!(of(StepAggregation::Min), 0.25);
        assert_eq!(of(StepAggregation::Last), 1.0);
        assert!((of(StepAggregation::Mean) - 1.75 / 3.0).abs() < 1e-12);
        assert_eq!(of(StepAggregation::Product), 0.125);
    }
}
