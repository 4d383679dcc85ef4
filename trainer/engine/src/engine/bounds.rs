//! Bounds of requests by the model: its vocabulary and its context.

use rlt_core::engine::SequenceRequest;
use rlt_core::images::ImageError;
use rlt_core::types::TokenId;
use rlt_models::ModelConfig;

use crate::{EngineError, EngineOptions, Request};

/// Bounds of requests by the model and the engine's options.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestBounds {
    /// Maximum number of tokens of prompt and completion together.
    pub(super) max_model_len: usize,
    vocab_size: usize,
    /// Placeholder of images, if the model reads images.
    image_token: Option<TokenId>,
}

impl RequestBounds {
    pub(super) fn new(options: &EngineOptions, config: &ModelConfig) -> Self {
        let context = config.max_position_embeddings;
        let max_model_len = options.max_model_len.map_or(context, |longest| longest.min(context));
        let image_token = config.vision.as_ref().map(|vision| vision.image_token);
        Self { max_model_len, vocab_size: config.vocab_size, image_token }
    }

    /// Checks a request, and cuts its completions to the model's context.
    pub(super) fn plan(
        &self,
        request_idx: usize,
        request: &Request,
        keep_open: bool,
    ) -> Result<SequenceRequest, EngineError> {
        request.sampling.validate().map_err(|source| EngineError::Sampling { request_idx, source })?;
        let room = self.room_behind(request_idx, request.prompt.len())?;
        self.check_tokens(request_idx, &request.prompt)?;
        Ok(SequenceRequest {
            prompt: request.prompt.clone(),
            seeds: request.seeds.clone(),
            max_new_tokens: request.max_new_tokens.min(room),
            keep_open,
        })
    }

    /// Checks the tokens that extend a sequence of `num_before` tokens, and returns `max_new_tokens` cut to
    /// the model's context. The tokens must not contain placeholders of images.
    pub(super) fn plan_turn(
        &self,
        request_idx: usize,
        num_before: usize,
        tokens: &[TokenId],
        max_new_tokens: usize,
    ) -> Result<usize, EngineError> {
        let room = self.room_behind(request_idx, num_before + tokens.len())?;
        self.check_tokens(request_idx, tokens)?;
        let placeholder = tokens.iter().enumerate().find(|(_, token)| Some(**token) == self.image_token);
        if let Some((position, &token)) = placeholder {
            let source = ImageError::MorePlaceholders { token, num_images: 0, position };
            return Err(EngineError::Images { request_idx, source });
        }
        Ok(max_new_tokens.min(room))
    }

    /// Number of tokens that fit behind `prompt_len` tokens; fails if there is no room.
    fn room_behind(&self, request_idx: usize, prompt_len: usize) -> Result<usize, EngineError> {
        let max_model_len = self.max_model_len;
        if prompt_len >= max_model_len {
            return Err(EngineError::PromptTooLong { request_idx, prompt_len, max_model_len });
        }
        Ok(max_model_len - prompt_len)
    }

    fn check_tokens(&self, request_idx: usize, tokens: &[TokenId]) -> Result<(), EngineError> {
        let vocab_size = self.vocab_size;
        match tokens.iter().find(|&&token| token as usize >= vocab_size) {
            None => Ok(()),
            Some(&token) => Err(EngineError::UnknownToken { request_idx, token, vocab_size }),
        }
    }
}
