//! Samples being written: their log-probs, the text so far, and whether the last token ends them.

use rlt_core::engine::{Detokenizer, IncrementalText, Sequence};
use rlt_core::sampling::SamplingParams;
use rlt_core::types::{Completion, FinishReason, TokenId};

use super::sampler::Drawn;
use super::{RolloutError, RolloutRequest};

/// What is known of one sample beside its tokens.
#[derive(Debug, Default)]
struct Draft {
    logprobs: Vec<f32>,
    text: IncrementalText,
    end: Option<End>,
    completion: Option<Completion>,
}

/// Why a sample ended, and where its text does when a stop string cut it.
#[derive(Clone, Copy, Debug)]
struct End {
    reason: FinishReason,
    text_len: Option<usize>,
}

/// The samples of one call, by request and sample.
pub(super) struct Drafts<'a> {
    detokenizer: &'a dyn Detokenizer,
    eos_token_ids: &'a [TokenId],
    requests: &'a [RolloutRequest],
    drafts: Vec<Vec<Draft>>,
}

impl<'a> Drafts<'a> {
    pub(super) fn new(
        requests: &'a [RolloutRequest],
        eos_token_ids: &'a [TokenId],
        detokenizer: &'a dyn Detokenizer,
    ) -> Self {
        let empty = |request: &RolloutRequest| request.seeds.iter().map(|_| Draft::default()).collect();
        Self { detokenizer, eos_token_ids, requests, drafts: requests.iter().map(empty).collect() }
    }

    /// Records the token drawn for `sequence`, which does not hold it yet; says whether it is the last one.
    pub(super) fn push(&mut self, sequence: &Sequence, drawn: Drawn) -> Result<bool, RolloutError> {
        let sampling = &self.requests[sequence.request_idx].sampling;
        let draft = &mut self.drafts[sequence.request_idx][sequence.sample_idx];
        draft.logprobs.push(drawn.logprob);
        let matched = if sampling.stop.is_empty() {
            None
        } else {
            let mut tokens = sequence.completion().to_vec();
            tokens.push(drawn.token);
            let found = draft.text.extend(&tokens, self.detokenizer, &sampling.stop);
            found.map_err(|source| failed(sequence, source))?
        };
        let stopped = matched.is_some() || ends_sample(drawn.token, sampling, self.eos_token_ids);
        let reason = if stopped {
            Some(FinishReason::Stop)
        } else {
            sequence.is_at_last_token().then_some(FinishReason::Length)
        };
        draft.end = reason.map(|reason| End { reason, text_len: matched });
        Ok(reason.is_some())
    }

    /// Turns a finished sequence into its completion.
    pub(super) fn finish(&mut self, sequence: &Sequence) -> Result<(), RolloutError> {
        let draft = &mut self.drafts[sequence.request_idx][sequence.sample_idx];
        let tokens = sequence.completion().to_vec();
        let End { reason, text_len } =
            draft.end.unwrap_or(End { reason: FinishReason::Length, text_len: None });
        let text = match text_len {
            Some(len) => draft.text.as_str()[..len].to_owned(),
            None => self.detokenizer.decode(&tokens).map_err(|source| failed(sequence, source))?,
        };
        let rollout_logprobs = std::mem::take(&mut draft.logprobs);
        draft.completion = Some(Completion { tokens, rollout_logprobs, text, finish_reason: reason });
        Ok(())
    }

    /// The completions in the order of requests and seeds.
    pub(super) fn into_completions(self) -> Vec<Vec<Completion>> {
        let completions =
            |drafts: Vec<Draft>| drafts.into_iter().filter_map(|draft| draft.completion).collect();
        self.drafts.into_iter().map(completions).collect()
    }
}

fn ends_sample(token: TokenId, sampling: &SamplingParams, eos_token_ids: &[TokenId]) -> bool {
    sampling.stop_token_ids.contains(&token) || !sampling.ignore_eos && eos_token_ids.contains(&token)
}

fn failed(sequence: &Sequence, source: rlt_core::engine::DetokenizeError) -> RolloutError {
    RolloutError::Detokenize { request_idx: sequence.request_idx, sample_idx: sequence.sample_idx, source }
}
