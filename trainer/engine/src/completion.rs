//! Sequences in progress: their tokens, log-probs and text, and whether the last token ends them.

use std::collections::HashMap;
use std::sync::Arc;

use rlt_core::engine::{DetokenizeError, Detokenizer, IncrementalText, SequenceId};
use rlt_core::sampling::SamplingParams;
use rlt_core::types::{Completion, FinishReason, TokenId};

use super::sampler::SampledToken;
use super::{EngineError, Request};

/// The output of one sequence so far.
#[derive(Debug)]
struct SequenceOutput {
    sampling: Arc<SamplingParams>,
    /// Requested maximum of new tokens. The model's context may end the sequence sooner.
    max_new_tokens: usize,
    tokens: Vec<TokenId>,
    logprobs: Vec<f32>,
    text: IncrementalText,
    end: Option<Ended>,
}

impl SequenceOutput {
    fn new(sampling: Arc<SamplingParams>, max_new_tokens: usize) -> Self {
        let text = IncrementalText::default();
        Self { sampling, max_new_tokens, tokens: Vec::new(), logprobs: Vec::new(), text, end: None }
    }

    /// Returns the finish reason of a sequence that has reached a limit: `Length` for its maximum of new
    /// tokens, else `Context`.
    fn reached_limit(&self) -> FinishReason {
        if self.tokens.len() < self.max_new_tokens { FinishReason::Context } else { FinishReason::Length }
    }
}

/// Reason of a sequence's end, and the length in bytes of its text if a stop string cut it.
#[derive(Clone, Copy, Debug)]
struct Ended {
    reason: FinishReason,
    text_len: Option<usize>,
}

/// Outputs of all sequences that have not been removed.
pub(super) struct RequestOutputs<'a> {
    detokenizer: &'a dyn Detokenizer,
    eos_token_ids: Vec<TokenId>,
    sequences: HashMap<SequenceId, SequenceOutput>,
    /// Number of each request's sequences.
    num_sequences: HashMap<usize, usize>,
    /// Digests of the expert routes of each request's first sample, by request index; `None` if routes are
    /// not recorded.
    routes: Option<HashMap<usize, Vec<u16>>>,
}

impl<'a> RequestOutputs<'a> {
    pub(super) fn new(
        detokenizer: &'a dyn Detokenizer,
        eos_token_ids: Vec<TokenId>,
        keeps_routes: bool,
    ) -> Self {
        let (sequences, num_sequences) = (HashMap::new(), HashMap::new());
        let routes = keeps_routes.then(HashMap::new);
        Self { detokenizer, eos_token_ids, sequences, num_sequences, routes }
    }

    /// Begins the outputs of a request's samples.
    pub(super) fn add(&mut self, request_idx: usize, request: &Request) {
        let sampling = Arc::new(request.sampling.clone());
        if !request.seeds.is_empty() {
            self.num_sequences.insert(request_idx, request.seeds.len());
        }
        for sample_idx in 0..request.seeds.len() {
            let id = SequenceId { request_idx, sample_idx };
            let output = SequenceOutput::new(Arc::clone(&sampling), request.max_new_tokens);
            self.sequences.insert(id, output);
        }
    }

    /// Begins another turn of a sequence, of at most `max_new_tokens` tokens.
    pub(super) fn begin_turn(&mut self, id: SequenceId, max_new_tokens: usize) {
        if let Some(output) = self.sequences.get_mut(&id) {
            output.max_new_tokens = max_new_tokens;
        }
    }

    /// Whether a sequence of the request exists.
    pub(super) fn has_request(&self, request_idx: usize) -> bool {
        self.num_sequences.contains_key(&request_idx)
    }

    /// The sampling parameters of a sequence.
    pub(super) fn sampling(&self, id: SequenceId) -> &SamplingParams {
        &self.sequences[&id].sampling
    }

    /// Records the token sampled for a sequence, and returns whether it is the last one. `is_longest` says
    /// whether the token brings the sequence to its token limit.
    pub(super) fn push(
        &mut self,
        id: SequenceId,
        sampled: SampledToken,
        is_longest: bool,
    ) -> Result<bool, EngineError> {
        let SequenceId { request_idx, sample_idx } = id;
        let Some(output) = self.sequences.get_mut(&id) else { return Ok(true) };
        // NaN or positive infinity among the logits makes all log-probs of the row NaN.
        if !sampled.logprob.is_finite() {
            let position = output.tokens.len();
            return Err(EngineError::NonFiniteLogits { request_idx, sample_idx, position });
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
            if stopped { Some(FinishReason::Stop) } else { is_longest.then(|| output.reached_limit()) };
        output.end = reason.map(|reason| Ended { reason, text_len: matched });
        Ok(reason.is_some())
    }

    /// Records the expert routes of the pass that samples a sequence's next token, one digest for each layer.
    /// Only the routes of each request's first sample are kept.
    pub(super) fn log_routes(&mut self, id: SequenceId, digests: &[u16]) {
        let Some(routes) = &mut self.routes else { return };
        if id.sample_idx == 0 && !digests.is_empty() {
            routes.entry(id.request_idx).or_default().extend(digests);
        }
    }

    /// Takes the recorded routes of the first `num_requests` requests.
    pub(super) fn take_routes(&mut self, num_requests: usize) -> Vec<Vec<u16>> {
        let mut routes = self.routes.take().unwrap_or_default();
        (0..num_requests).map(|request_idx| routes.remove(&request_idx).unwrap_or_default()).collect()
    }

    /// Takes the completion of a sequence that has ended. A later turn of the sequence begins with an empty
    /// output.
    pub(super) fn complete(&mut self, id: SequenceId) -> Result<Option<Completion>, EngineError> {
        let Some(output) = self.sequences.get_mut(&id) else { return Ok(None) };
        let next = SequenceOutput::new(Arc::clone(&output.sampling), output.max_new_tokens);
        let SequenceOutput { tokens, logprobs: rollout_logprobs, text, end, .. } =
            std::mem::replace(output, next);
        let Ended { reason, text_len } =
            end.unwrap_or(Ended { reason: FinishReason::Length, text_len: None });
        let text = match text_len {
            Some(len) => text.as_str()[..len].to_owned(),
            None => self.detokenizer.decode(&tokens).map_err(|source| failed(id, source))?,
        };
        Ok(Some(Completion { tokens, rollout_logprobs, text, finish_reason: reason }))
    }

    /// Drops the output of a sequence that no longer exists. Returns whether it was the last one of its
    /// request.
    pub(super) fn remove(&mut self, id: SequenceId) -> bool {
        let exists = self.sequences.remove(&id).is_some();
        let Some(num_left) = self.num_sequences.get_mut(&id.request_idx).filter(|_| exists) else {
            return false;
        };
        *num_left -= 1;
        let is_last = *num_left == 0;
        if is_last {
            self.num_sequences.remove(&id.request_idx);
        }
        is_last
    }
}

fn ends_sample(token: TokenId, sampling: &SamplingParams, eos_token_ids: &[TokenId]) -> bool {
    sampling.stop_token_ids.contains(&token) || !sampling.ignore_eos && eos_token_ids.contains(&token)
}

fn failed(id: SequenceId, source: DetokenizeError) -> EngineError {
    let SequenceId { request_idx, sample_idx } = id;
    EngineError::Detokenize { request_idx, sample_idx, source }
}
