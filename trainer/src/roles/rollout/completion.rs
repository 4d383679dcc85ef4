//! Sequences in progress: their tokens, log-probs and text, and whether the last token ends them.

use std::collections::HashMap;
use std::sync::Arc;

use rlt_core::engine::{DetokenizeError, Detokenizer, IncrementalText, SequenceId};
use rlt_core::sampling::SamplingParams;
use rlt_core::types::{Completion, FinishReason, TokenId};

use super::sampler::SampledToken;
use super::{RolloutError, RolloutRequest};

/// The output of one sequence so far.
#[derive(Debug)]
struct SequenceOutput {
    sampling: Arc<SamplingParams>,
    tokens: Vec<TokenId>,
    logprobs: Vec<f32>,
    text: IncrementalText,
    end: Option<Ended>,
}

impl SequenceOutput {
    fn new(sampling: Arc<SamplingParams>) -> Self {
        let text = IncrementalText::default();
        Self { sampling, tokens: Vec::new(), logprobs: Vec::new(), text, end: None }
    }
}

/// Reason of a sequence's end, and the length in bytes of its text if a stop string cut it.
#[derive(Clone, Copy, Debug)]
struct Ended {
    reason: FinishReason,
    text_len: Option<usize>,
}

/// The outputs of the sequences that have not ended.
pub(super) struct RequestOutputs<'a> {
    detokenizer: &'a dyn Detokenizer,
    eos_token_ids: Vec<TokenId>,
    sequences: HashMap<SequenceId, SequenceOutput>,
    /// Digests of the routes from which each request's first sample was drawn, by the request.
    routes: HashMap<usize, Vec<u16>>,
}

impl<'a> RequestOutputs<'a> {
    pub(super) fn new(detokenizer: &'a dyn Detokenizer, eos_token_ids: Vec<TokenId>) -> Self {
        Self { detokenizer, eos_token_ids, sequences: HashMap::new(), routes: HashMap::new() }
    }

    /// Begins the outputs of a request's samples.
    pub(super) fn add(&mut self, request_idx: usize, request: &RolloutRequest) {
        let sampling = Arc::new(request.sampling.clone());
        for sample_idx in 0..request.seeds.len() {
            let id = SequenceId { request_idx, sample_idx };
            self.sequences.insert(id, SequenceOutput::new(Arc::clone(&sampling)));
        }
    }

    /// The sampling parameters of a sequence that has not ended.
    pub(super) fn sampling(&self, id: SequenceId) -> &SamplingParams {
        &self.sequences[&id].sampling
    }

    /// Records the token sampled for a sequence, and returns whether it is the last one. `is_longest` says
    /// that it brings the sequence to its token limit.
    pub(super) fn push(
        &mut self,
        id: SequenceId,
        sampled: SampledToken,
        is_longest: bool,
    ) -> Result<bool, RolloutError> {
        let SequenceId { request_idx, sample_idx } = id;
        let Some(output) = self.sequences.get_mut(&id) else { return Ok(true) };
        // NaN or positive infinity among the logits makes all log-probs of the row NaN.
        if !sampled.logprob.is_finite() {
            let position = output.tokens.len();
            return Err(RolloutError::NonFiniteLogits { request_idx, sample_idx, position });
        }
        output.tokens.push(sampled.token);
        output.logprobs.push(sampled.logprob);
        let matched = if output.sampling.stop.is_empty() {
            None
        } else {
            let found = output.text.extend(&output.tokens, self.detokenizer, &output.sampling.stop);
            found.map_err(|source| failed(id, source))?
        };
        let stopped = matched.is_some() || ends_sample(sampled.token, &output.sampling, &self.eos_token_ids);
        let reason =
            if stopped { Some(FinishReason::Stop) } else { is_longest.then_some(FinishReason::Length) };
        output.end = reason.map(|reason| Ended { reason, text_len: matched });
        Ok(reason.is_some())
    }

    /// Records the routes of the pass from which a sequence's next token is drawn, a digest for each layer.
    /// Only those of each request's first sample are kept.
    pub(super) fn log_routes(&mut self, id: SequenceId, digests: &[u16]) {
        if id.sample_idx == 0 && !digests.is_empty() {
            self.routes.entry(id.request_idx).or_default().extend(digests);
        }
    }

    /// Takes the recorded routes of the first `num_requests` requests.
    pub(super) fn take_routes(&mut self, num_requests: usize) -> Vec<Vec<u16>> {
        (0..num_requests).map(|request_idx| self.routes.remove(&request_idx).unwrap_or_default()).collect()
    }

    /// Turns the output of a sequence that has ended into its completion.
    pub(super) fn finish(&mut self, id: SequenceId) -> Result<Option<Completion>, RolloutError> {
        let Some(output) = self.sequences.remove(&id) else { return Ok(None) };
        let Ended { reason, text_len } =
            output.end.unwrap_or(Ended { reason: FinishReason::Length, text_len: None });
        let text = match text_len {
            Some(len) => output.text.as_str()[..len].to_owned(),
            None => self.detokenizer.decode(&output.tokens).map_err(|source| failed(id, source))?,
        };
        let SequenceOutput { tokens, logprobs: rollout_logprobs, .. } = output;
        Ok(Some(Completion { tokens, rollout_logprobs, text, finish_reason: reason }))
    }
}

fn ends_sample(token: TokenId, sampling: &SamplingParams, eos_token_ids: &[TokenId]) -> bool {
    sampling.stop_token_ids.contains(&token) || !sampling.ignore_eos && eos_token_ids.contains(&token)
}

fn failed(id: SequenceId, source: DetokenizeError) -> RolloutError {
    let SequenceId { request_idx, sample_idx } = id;
    RolloutError::Detokenize { request_idx, sample_idx, source }
}
