//! Mean sequence lengths for which step times are predicted.

use rlt_api::resolved::ResolvedSpec;
use serde::Serialize;

/// Mean lengths of a step's sequences, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MeanLengths {
    prompt_tokens: u32,
    completion_tokens: u32,
}

/// A mean length that no step of the job can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{value} tokens of a {of}: expected 1 to {limit}, {field} of the manifest")]
pub struct UnfitLength {
    of: &'static str,
    value: u32,
    limit: u32,
    field: &'static str,
}

impl MeanLengths {
    /// Takes the lengths of a step in which every sequence is as long as the manifest allows.
    pub fn longest(spec: &ResolvedSpec) -> Self {
        let (prompt_tokens, completion_tokens) =
            (spec.data.max_prompt_tokens, spec.rollout.max_completion_tokens);
        Self { prompt_tokens, completion_tokens }
    }

    /// Takes the given mean lengths, and the longest for those that are `None`.
    ///
    /// # Errors
    /// [`UnfitLength`] for a mean that is 0 or exceeds the longest.
    pub fn of(
        spec: &ResolvedSpec,
        prompt: Option<u32>,
        completion: Option<u32>,
    ) -> Result<Self, UnfitLength> {
        let longest = Self::longest(spec);
        let known = |of, field, value: Option<u32>, limit| match value {
            None => Ok(limit),
            Some(value) if (1..=limit).contains(&value) => Ok(value),
            Some(value) => Err(UnfitLength { of, value, limit, field }),
        };
        Ok(Self {
            prompt_tokens: known("prompt", "spec.data.maxPromptTokens", prompt, longest.prompt_tokens)?,
            completion_tokens: known(
                "completion",
                "spec.rollout.maxCompletionTokens",
                completion,
                longest.completion_tokens,
            )?,
        })
    }

    /// Mean tokens of a prompt.
    pub fn prompt_tokens(self) -> u32 {
        self.prompt_tokens
    }

    /// Mean tokens of a completion.
    pub fn completion_tokens(self) -> u32 {
        self.completion_tokens
    }

    /// Returns the specification with these lengths as its maximal ones.
    pub(super) fn as_longest(self, spec: &ResolvedSpec) -> ResolvedSpec {
        let mut spec = spec.clone();
        spec.data.max_prompt_tokens = self.prompt_tokens;
        spec.rollout.max_completion_tokens = self.completion_tokens;
        spec
    }
}
