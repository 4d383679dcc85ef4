//! A decoder: embedding, layers, final norm and head, with their parameters by Hugging Face name.

mod saved_weights;

use std::cell::OnceCell;
use std::ops::Range;
use std::sync::Arc;

use rlt_core::images::PromptImage;
use rlt_models::{ModelConfig, SCORE_BIAS};
use rlt_torch::TokenDistribution;
use tch::{Device, Kind, Tensor};

use super::error::ModelError;
use super::layer::{DecoderLayer, LayerContext};
use super::lora::LoraConfig;
use super::names::layer_idx;
use super::ops;
use super::packed::PackedInput;
use super::parameters::{LoadOptions, NamedTensors};
use super::projection::Adapter;
use super::rope::{RopeTables, Ropes};
use super::vision::VisionTower;
pub(super) use saved_weights::SavedModules;

/// A decoder with its weights.
#[derive(Debug)]
pub struct Decoder {
    /// The model's configuration.
    pub config: ModelConfig,
    /// Options with which the weights were loaded.
    pub options: LoadOptions,
    /// Token embeddings, `[vocabulary, hidden]`.
    pub embedding: Tensor,
    /// Layers in the order of the forward pass.
    pub layers: Vec<DecoderLayer>,
    /// Weight of the final norm, `[hidden]`.
    pub norm: Tensor,
    pub(crate) head: Option<Tensor>,
    /// Bias of a token classifier's head, f32 `[labels]`.
    pub(crate) head_bias: Option<Tensor>,
    /// Rotary embeddings of all layers.
    pub ropes: Ropes,
    pub(crate) lora: Option<LoraConfig>,
    /// Trained copies of modules whose full weights are trained with an adapter (`modulesToSave`).
    pub(crate) saved: SavedModules,
    /// Tower of a vision-language model; `None` in meta tensors until [`Self::read_vision`].
    pub vision: Option<VisionTower>,
    /// File to which the weights of a frozen copy were moved.
    pub offload_file: Option<rlt_torch::TensorFile>,
    /// Token ids whose embeddings and logits this rank holds; set when the weights are sharded for tensor
    /// parallelism.
    pub(crate) token_shard: OnceCell<Range<usize>>,
}

impl Decoder {
    /// Token embeddings [tokens, hidden] in the compute dtype. Token ids must be below `vocab_size`.
    ///
    /// As in transformers the row of `pad_token_id` receives no gradient from here, and Gemma's factor is
    /// rounded to the compute dtype before the multiplication.
    pub fn embed(&self, tokens: &Tensor, adapter: Adapter) -> Tensor {
        let padding_idx = self.config.pad_token_id.map_or(-1, i64::from);
        let compute = self.options.compute;
        let weight_vd = self.embedding_weight(adapter);
        let hidden_td = Tensor::embedding(weight_vd, tokens, padding_idx, false, false).to_kind(compute);
        if self.config.embedding_scale == 1.0 { hidden_td } else { hidden_td * self.embedding_scale() }
    }

    /// Returns the input of the first layer, [tokens, hidden] in the compute dtype: token embeddings, in
    /// which the image features of `context` replace the embeddings of image tokens. With tensor parallelism
    /// the result is this rank's summand.
    pub fn embed_input(&self, input: &PackedInput, context: &LayerContext) -> Tensor {
        if let Some(own) = self.own_tokens(&input.tokens) {
            return self.embed_own(&own, context.adapter);
        }
        let embedded_td = self.embed(&input.tokens, context.adapter);
        match &context.features {
            Some(features) => features.in_place_of(&embedded_td),
            None => embedded_td,
        }
    }

    /// Computes the features of images, concatenated, [tokens of images, k * hidden] in the compute dtype.
    /// The first `hidden` columns replace a token's embedding, the next are added after the first layer, then
    /// after the second and so on.
    ///
    /// # Panics
    /// When the tower was never read ([`Self::read_vision`]).
    pub fn image_features(&self, images: &[Arc<PromptImage>], adapter: Adapter) -> Tensor {
        assert!(self.vision.is_some(), "images before a decoder whose vision tower was not read");
        let features = self.vision.iter().map(|tower| tower.features(images, adapter));
        Tensor::cat(&features.collect::<Vec<_>>(), 0)
    }

    /// Factor of embeddings, rounded to the compute dtype.
    pub fn embedding_scale(&self) -> f64 {
        let rounded =
            Tensor::from(self.config.embedding_scale).to_kind(Kind::Float).to_kind(self.options.compute);
        rounded.to_kind(Kind::Double).double_value(&[])
    }

    /// The decoder layers, first to last.
    pub fn layers(&self) -> &[DecoderLayer] {
        &self.layers
    }

    /// The context of the layers in one forward pass over `input`, without dropout and image features.
    pub fn context(&self, input: &PackedInput, adapter: Adapter) -> LayerContext {
        LayerContext {
            rope: self.rope(&input.position_ids),
            cu_seqlens: input.cu_seqlens.clone(),
            prefixes: input.prefixes.clone(),
            segments: input.segments.clone(),
            first_token: input.first_token,
            adapter,
            dropout_seed: None,
            router: None,
            routes: None,
            features: None,
        }
    }

    /// Rotary tables for `position_ids`: `i64 [tokens]`, or `i64 [3, tokens]` for time, height and width.
    pub fn rope(&self, position_ids: &Tensor) -> RopeTables {
        self.ropes.at(position_ids, self.options.compute)
    }

    /// The input of the head, [tokens, hidden] to [tokens, hidden]: final norm, then the scale of logits.
    pub fn final_norm(&self, hidden_td: &Tensor, adapter: Adapter) -> Tensor {
        let ModelConfig { norm_kind, rms_norm_eps, norm_offset, logit_scale, .. } = self.config;
        let weight_d = self.norm_weight(adapter);
        let normed_td = ops::norm(norm_kind, hidden_td, weight_d, rms_norm_eps, norm_offset);
        if logit_scale == 1.0 { normed_td } else { normed_td * logit_scale }
    }

    /// Head weight [vocabulary, hidden] in the compute dtype, without gradient: the stored tensor if the
    /// dtypes agree, else a copy, so call it once per micro-batch.
    pub fn compute_head_weight(&self, adapter: Adapter) -> Tensor {
        tch::no_grad(|| self.head_weight(adapter).detach().to_kind(self.options.compute))
    }

    /// Embedding, all layers and final norm in one differentiable pass: [tokens, hidden].
    pub fn hidden_states(&self, input: &PackedInput, adapter: Adapter) -> Tensor {
        let features = self.placed_features(input, adapter);
        let context = LayerContext { features, ..self.context(input, adapter) };
        let embedded = self.embed_input(input, &context);
        let last = self.layers.iter().fold(embedded, |hidden, layer| layer.forward(&hidden, &context));
        self.final_norm(&last, adapter)
    }

    /// Logits of every next token, [tokens, vocabulary] in the compute dtype, for `hidden_td` after the final
    /// norm. Training uses a chunked head instead, which never holds this tensor.
    pub fn logits(&self, hidden_td: &Tensor, adapter: Adapter) -> Tensor {
        let weight_vd = self.head_weight(adapter).to_kind(self.options.compute);
        self.capped(rlt_torch::linear(hidden_td, &weight_vd, None))
    }

    /// Applies the softcap to logits, rounding once as the chunked head does; without a cap returns them as
    /// they are.
    pub fn capped(&self, logits: Tensor) -> Tensor {
        let Some(cap) = self.config.logit_softcap else { return logits };
        let wide = if logits.kind() == Kind::Double { Kind::Double } else { Kind::Float };
        ((logits.to_kind(wide) / cap).tanh() * cap).to_kind(logits.kind())
    }

    /// Distribution that the chunked head computes from logits at this temperature.
    pub fn distribution(&self, temperature: f64) -> TokenDistribution {
        TokenDistribution { temperature, softcap: self.config.logit_softcap }
    }

    /// The values of a classifier's head, f32 [labels, tokens], for `hidden_td` after the final norm.
    pub fn labels(&self, hidden_td: &Tensor) -> Tensor {
        let weight =
            self.head_weight(Adapter::On).detach().to_kind(self.options.compute).to_kind(Kind::Float);
        let hidden_td = hidden_td.to_kind(Kind::Float);
        let of_label = |weight_d: &Tensor| hidden_td.mv(weight_d);
        let labels = Tensor::stack(&weight.unbind(0).iter().map(of_label).collect::<Vec<_>>(), 0);
        match &self.head_bias {
            Some(bias) => labels + bias.detach().to_kind(Kind::Float).unsqueeze(1),
            None => labels,
        }
    }

    /// Device of all tensors.
    pub fn device(&self) -> Device {
        self.options.device
    }

    /// Dtype of activations.
    pub fn compute_kind(&self) -> Kind {
        self.options.compute
    }

    /// Every parameter, in checkpoint order: the model's under their Hugging Face names, a tied head once as
    /// the embedding, then the adapter's under PEFT's names. The tensors share storage with the model.
    pub fn named_parameters(&self) -> Vec<(String, Tensor)> {
        let mut parameters = self.base_parameters();
        parameters.extend(self.adapter_parameters());
        parameters
    }

    /// Every parameter but the adapter's, in checkpoint order.
    pub fn base_parameters(&self) -> Vec<(String, Tensor)> {
        let mut parameters = vec![("model.embed_tokens.weight".to_owned(), self.embedding.shallow_clone())];
        for (layer_idx, layer) in self.layers.iter().enumerate() {
            layer.push_parameters(&format!("model.layers.{layer_idx}"), &mut parameters);
        }
        parameters.push(("model.norm.weight".to_owned(), self.norm.shallow_clone()));
        if let Some(head) = &self.head {
            parameters.push((self.config.head_name().to_owned(), head.shallow_clone()));
        }
        let tower = self.vision.iter().filter(|tower| tower.is_own);
        parameters.extend(tower.flat_map(VisionTower::parameters));
        if let Some(bias) = &self.head_bias {
            parameters.push((SCORE_BIAS.to_owned(), bias.shallow_clone()));
        }
        parameters
    }

    /// Every parameter, adapters included: first those of each layer, then those outside of the layers.
    pub fn parameters_by_layer(&self) -> (Vec<NamedTensors>, NamedTensors) {
        let mut layers: Vec<NamedTensors> = self.layers.iter().map(|_| Vec::new()).collect();
        let mut outer = Vec::new();
        for (name, tensor) in self.named_parameters() {
            layer_idx(&name).and_then(|idx| layers.get_mut(idx)).unwrap_or(&mut outer).push((name, tensor));
        }
        (layers, outer)
    }

    /// The parameters that collect gradients, in checkpoint order.
    pub fn trainable_parameters(&self) -> Vec<(String, Tensor)> {
        self.named_parameters().into_iter().filter(|(_, tensor)| tensor.requires_grad()).collect()
    }

    /// Checks that every id of a tokenizer has a row in the embedding; `max_token_id` is the tokenizer's
    /// largest id. An embedding may have more rows.
    ///
    /// # Errors
    /// [`ModelError::VocabularyMismatch`].
    pub fn check_vocabulary(&self, max_token_id: u32) -> Result<(), ModelError> {
        let vocab_size = self.config.vocab_size;
        if (max_token_id as usize) < vocab_size {
            return Ok(());
        }
        Err(ModelError::VocabularyMismatch { vocab_size, max_token_id })
    }
}

impl DecoderLayer {
    fn push_parameters(&self, layer: &str, parameters: &mut Vec<(String, Tensor)>) {
        for projection in &self.projections {
            projection.weight.push_to(&projection.name, parameters);
            if let Some(bias) = &projection.bias {
                parameters.push((format!("{}.bias", projection.name), bias.shallow_clone()));
            }
        }
        if let Some(experts) = &self.experts {
            parameters.extend(experts.parameters().map(|(name, weight)| (name, weight.shallow_clone())));
        }
        let sinks = self.sinks.iter();
        parameters.extend(sinks.map(|sinks| (format!("{layer}.self_attn.sinks"), sinks.shallow_clone())));
        for norm in self.norms.iter() {
            parameters.push((format!("{layer}.{}.weight", norm.name), norm.weight.shallow_clone()));
        }
    }
}
