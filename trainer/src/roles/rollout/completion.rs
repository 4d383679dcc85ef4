//! Samples in progress: their tokens, log-probs and text, and whether the last token ends them.

use rlt_core::engine::{DetokenizeError, Detokenizer, IncrementalText, SequenceId};
use rlt_core::sampling::SamplingParams;
use rlt_core::types::{Completion, FinishReason, TokenId};

use super::sampler::SampledToken;
use super::{RolloutError, RolloutRequest};

/// State of one sample.
#[derive(Debug, Default)]
struct SequenceOutput {
    tokens: Vec<TokenId>,
    logprobs: Vec<f32>,
    text: IncrementalText,
    end: Option<Ended>,
    completion: Option<Completion>,
    /// Digests of the routes of the passes from which its tokens were drawn.
    routes: Vec<u16>,
}

/// Reason of a sample's end, and the length in bytes of its text if a stop string cut it.
#[derive(Clone, Copy, Debug)]
struct Ended {
    reason: FinishReason,
    text_len: Option<usize>,
}

/// The samples of one call, by request and sample.
pub(super) struct RequestOutputs<'a> {
    detokenizer: &'a dyn Detokenizer,
    eos_token_ids: &'a [TokenId],
    requests: &'a [RolloutRequest],
    outputs: Vec<Vec<SequenceOutput>>,
    on_finish: &'a mut OnFinish<'a>,
}

/// Callback for each completion as soon as it is finished, with its request and sample.
pub(super) type OnFinish<'a> = dyn FnMut((usize, usize), &Completion) + 'a;

impl<'a> RequestOutputs<'a> {
    pub(super) fn new(
        requests: &'a [RolloutRequest],
        eos_token_ids: &'a [TokenId],
        detokenizer: &'a dyn Detokenizer,
        on_finish: &'a mut OnFinish<'a>,
    ) -> Self {
        let empty =
            |request: &RolloutRequest| request.seeds.iter().map(|_| SequenceOutput::default()).collect();
        let outputs = requests.iter().map(empty).collect();
        Self { detokenizer, eos_token_ids, requests, outputs, on_finish }
    }

    pub(super) fn requests(&self) -> &'a [RolloutRequest] {
        self.requests
    }

    /// Whether the last token of a sample has been recorded.
    pub(super) fn is_complete(&self, id: SequenceId) -> bool {
        self.outputs[id.request_idx][id.sample_idx].end.is_some()
    }

    /// Records the token drawn for a sample, and returns whether it is the last one. `is_longest` says that
    /// the sample has reached its token limit.
    pub(super) fn push(
        &mut self,
        id: SequenceId,
        drawn: SampledToken,
        is_longest: bool,
    ) -> Result<bool, RolloutError> {
        let SequenceId { request_idx, sample_idx } = id;
        let sampling = &self.requests[request_idx].sampling;
        let output = &mut self.outputs[request_idx][sample_idx];
        // NaN or positive infinity among the logits makes all log-probs of the row NaN.
        if !drawn.logprob.is_finite() {
            let position = output.tokens.len();
            return Err(RolloutError::NonFiniteLogits { request_idx, sample_idx, position });
        }
        output.tokens.push(drawn.token);
        output.logprobs.push(drawn.logprob);
        let matched = if sampling.stop.is_empty() {
            None
        } else {
            let found = output.text.extend(&output.tokens, self.detokenizer, &sampling.stop);
            found.map_err(|source| failed(id, source))?
        };
        let stopped = matched.is_some() || ends_sample(drawn.token, sampling, self.eos_token_ids);
        let reason =
            if stopped { Some(FinishReason::Stop) } else { is_longest.then_some(FinishReason::Length) };
        output.end = reason.map(|reason| Ended { reason, text_len: matched });
        Ok(reason.is_some())
    }

    /// Records the routes of the pass from which a sample's next token is drawn, a digest for each layer.
    /// Only those of each request's first sample are kept.
    pub(super) fn log_routes(&mut self, id: SequenceId, digests: impl Iterator<Item = u16>) {
        if id.sample_idx == 0 {
            self.outputs[id.request_idx][id.sample_idx].routes.extend(digests);
        }
    }

    /// Takes the recorded routes of each request's first sample.
    pub(super) fn take_routes(&mut self) -> Vec<Vec<u16>> {
        let first = |outputs: &mut Vec<SequenceOutput>| {
            outputs.first_mut().map(|output| std::mem::take(&mut output.routes))
        };
        self.outputs.iter_mut().map(|outputs| first(outputs).unwrap_or_default()).collect()
    }

    /// Turns a finished sample into its completion.
    pub(super) fn finish(&mut self, id: SequenceId) -> Result<(), RolloutError> {
        let output = &mut self.outputs[id.request_idx][id.sample_idx];
        let tokens = std::mem::take(&mut output.tokens);
        let Ended { reason, text_len } =
            output.end.unwrap_or(Ended { reason: FinishReason::Length, text_len: None });
        let text = match text_len {
            Some(len) => output.text.as_str()[..len].to_owned(),
            None => self.detokenizer.decode(&tokens).map_err(|source| failed(id, source))?,
        };
        let rollout_logprobs = std::mem::take(&mut output.logprobs);
        let completion = Completion { tokens, rollout_logprobs, text, finish_reason: reason };
        (self.on_finish)((id.request_idx, id.sample_idx), &completion);
        output.completion = Some(completion);
        Ok(())
    }

    /// The completions, in the order of requests and seeds.
    pub(super) fn into_completions(self) -> Vec<Vec<Completion>> {
        let completions = |outputs: Vec<SequenceOutput>| {
            outputs.into_iter().filter_map(|output| output.completion).collect()
        };
        self.outputs.into_iter().map(completions).collect()
    }
}

fn ends_sample(token: TokenId, sampling: &SamplingParams, eos_token_ids: &[TokenId]) -> bool {
    sampling.stop_token_ids.contains(&token) || !sampling.ignore_eos && eos_token_ids.contains(&token)
}

fn failed(id: SequenceId, source: DetokenizeError) -> RolloutError {
    let SequenceId { request_idx, sample_idx } = id;
    RolloutError::Detokenize { request_idx, sample_idx, source }
}
