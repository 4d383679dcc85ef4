//! Construction of a [`Decoder`] from weights, which are read from a Hugging Face folder or drawn.

use std::cell::OnceCell;
use std::path::Path;

use rlt_api::conflicts::{Fact, conflict_of};
use rlt_layout::TensorRun;
use rlt_models::{Experts, ModelConfig, OutputHead, SCORE_BIAS};
use tch::{Kind, Tensor};

use super::base_weight::{BaseWeight, layout_of};
use super::decoder::{Decoder, SavedModules};
use super::error::ModelError;
use super::experts::ExpertWeights;
use super::layer::{DecoderLayer, LayerShape};
use super::names::{EMBEDDING, is_label_head};
use super::norms::LayerNorms;
use super::parameters::{LoadOptions, meta};
use super::projection::Linear;
use super::rope::Ropes;
use super::vision::VisionTower;
use super::weights::Weights;

impl Decoder {
    /// Reads a model folder, see [`Weights::open`].
    ///
    /// # Errors
    /// [`ModelError`], as of [`Weights::open`] and [`Weights::fill`].
    pub fn load(dir: &Path, options: &LoadOptions) -> Result<Self, ModelError> {
        Self::from_weights(&Weights::open(dir)?, options)
    }

    /// A model that was never trained, with weights drawn from `seed`, see [`Weights::random_init`].
    ///
    /// # Errors
    /// [`ModelError::Torch`] if the device has too little memory.
    pub fn from_config(config: &ModelConfig, seed: u64, options: &LoadOptions) -> Result<Self, ModelError> {
        Self::from_weights(&Weights::random_init(config, seed), options)
    }

    /// Loads all of `weights`.
    ///
    /// # Errors
    /// [`ModelError`], as of [`Weights::fill`], and if the device has too little memory.
    pub fn from_weights(weights: &Weights, options: &LoadOptions) -> Result<Self, ModelError> {
        let mut decoder = build(weights.config(), options, &|name, shape, kind| {
            let numbers = (kind, options.device);
            let tensor = Tensor::f_empty(shape, numbers).map_err(|source| ModelError::Torch {
                tensor: name.to_owned(),
                device: format!("{:?}", options.device),
                source,
            })?;
            weights.fill(&TensorRun::full(name, shape), &tensor.view(-1))?;
            Ok(tensor)
        })?;
        decoder.read_vision(weights)?;
        Ok(decoder)
    }

    /// Reads the full vision tower of a model that has one, even if ranks shard the decoder.
    ///
    /// # Errors
    /// [`ModelError`], as of [`Weights::fill`], and if the device has too little memory.
    pub fn read_vision(&mut self, weights: &Weights) -> Result<(), ModelError> {
        self.vision = VisionTower::read(weights, &self.options)?;
        Ok(())
    }

    /// Makes the vision tower, if there is one, trainable with all other weights, and keeps its values.
    pub fn train_vision(&mut self) {
        self.vision = self.vision.take().map(VisionTower::trained);
    }

    /// Adds the meta tensors of a vision tower that is trained with all other weights.
    pub fn meta_vision(&mut self) {
        self.vision = VisionTower::meta(&self.config, &self.options);
    }

    /// A model of meta tensors, named after PyTorch's device: its weights have shapes, but are zero
    /// everywhere and take the memory of one value each, until they get memory and values, for example as
    /// FSDP shards. A vision tower is read by [`Self::read_vision`].
    ///
    /// # Errors
    /// [`ModelError::Torch`] when libtorch cannot reach the device.
    pub fn meta(config: &ModelConfig, options: &LoadOptions) -> Result<Self, ModelError> {
        build(config, options, &|_, shape, kind| Ok(meta(shape, (kind, options.device))))
    }
}

/// Storage dtype of a weight. A classifier's head is trained with any adapter, so its master is always in
/// f32.
fn stored_as(name: &str, options: &LoadOptions) -> Kind {
    if is_label_head(name) { Kind::Float } else { options.param_dtype }
}

/// Makes the tensor for a name, shape and dtype on the model's device.
type Place<'a> = dyn Fn(&str, &[i64], Kind) -> Result<Tensor, ModelError> + 'a;

/// Makes the tensor of a dense weight for a name and shape, in the storage dtype.
type Placed<'a> = dyn Fn(&str, &[i64]) -> Result<Tensor, ModelError> + 'a;

fn build(config: &ModelConfig, options: &LoadOptions, place: &Place<'_>) -> Result<Decoder, ModelError> {
    let facts = config.facts();
    if options.trainable && conflict_of(Fact::FullTraining, &facts).is_some() {
        return Err(ModelError::QuantizedUse);
    }
    let on_gpu = || conflict_of(Fact::OnGpu, &facts);
    if let Some(conflict) = options.device.is_cuda().then(on_gpu).flatten() {
        return Err(ModelError::PartOnGpu { family: config.family, part: conflict.part() });
    }
    let placed = |name: &str, shape: &[i64]| {
        Ok(place(name, shape, stored_as(name, options))?.set_requires_grad(options.trainable))
    };
    let layer = |layer_idx| build_layer(config, layer_idx, options, place, &placed);
    let layers = (0..config.num_layers).map(layer);
    let vocabulary = [config.vocab_size as i64, config.hidden_size as i64];
    Ok(Decoder {
        layers: layers.collect::<Result<_, _>>()?,
        embedding: placed(EMBEDDING, &vocabulary)?,
        norm: placed("model.norm.weight", &vocabulary[1..])?,
        head: match config.tie_word_embeddings {
            true => None,
            false => Some(placed(config.head_name(), &[config.head_rows() as i64, vocabulary[1]])?),
        },
        head_bias: match config.head {
            OutputHead::Tokens => Some(placed(SCORE_BIAS, &[config.head_rows() as i64])?),
            OutputHead::Vocabulary | OutputHead::Sequence => None,
        },
        ropes: Ropes::new(config, options.device),
        options: *options,
        lora: None,
        saved: SavedModules::default(),
        vision: None,
        offload_file: None,
        token_shard: OnceCell::new(),
        config: config.clone(),
    })
}

fn build_layer(
    config: &ModelConfig,
    layer_idx: usize,
    options: &LoadOptions,
    place: &Place<'_>,
    placed: &Placed<'_>,
) -> Result<DecoderLayer, ModelError> {
    let layer = format!("model.layers.{layer_idx}");
    let mut projections = Vec::new();
    for shape in config.projections(layer_idx) {
        let name = format!("{layer}.{}", shape.name);
        let [outputs, inputs] = [shape.out_features, shape.in_features].map(|width| width as i64);
        let weight = match config.quantization_of(&name) {
            None => BaseWeight::Dense(placed(&format!("{name}.weight"), &[outputs, inputs])?),
            Some(quantization) => {
                let layout = layout_of(quantization, options.param_dtype);
                let tensors = quantization.tensors(&name, [shape.out_features, shape.in_features]);
                BaseWeight::quantized([outputs, inputs], layout, &tensors, |tensor, kind| {
                    let shape: Vec<i64> = tensor.shape.iter().map(|dim| *dim as i64).collect();
                    place(&tensor.name, &shape, kind)
                })?
            }
        };
        let bias = if shape.bias { Some(placed(&format!("{name}.bias"), &[outputs])?) } else { None };
        projections.push(Linear { name, weight, bias, lora: None, shard: OnceCell::new() });
    }
    let norm = |name: &str, shape: &[i64]| placed(&format!("{layer}.{name}.weight"), shape);
    let norms = LayerNorms::new(config, norm)?;
    let experts = ExpertWeights::new(config, layer_idx, placed)?;
    let sinks = match config.attention_sinks {
        true => Some(placed(&format!("{layer}.self_attn.sinks"), &[config.num_heads as i64])?),
        false => None,
    };
    let shape = layer_shape(config, layer_idx);
    let local_products = OnceCell::new();
    Ok(DecoderLayer { shape, local_products, norms, saved_norms: None, sinks, projections, experts })
}

fn layer_shape(config: &ModelConfig, layer_idx: usize) -> LayerShape {
    let experts = config.experts_of(layer_idx);
    let has_gate = |experts: &&Experts| experts.shared_block.gate.is_some();
    let shared = experts.filter(has_gate).and_then(|experts| experts.shared_intermediate_size);
    let shared_gate_idx = shared.map(|_| {
        // The gate is the last of the projections in a layer of experts.
        config.projections(layer_idx).len() - 1
    });
    LayerShape {
        head_dim: config.head_dim as i64,
        activation: config.hidden_activation,
        attention_scale: config.attention_scale,
        attention_softcap: config.attention_softcap,
        parallel_blocks: config.parallel_blocks,
        residual_scale: config.residual_scale,
        window: config.layer_windows[layer_idx].map(|window| window as i64),
        rope_idx: config.layer_ropes[layer_idx],
        products: config.products(layer_idx),
        latent: config.latent.clone(),
        shared_gate_idx,
        layer_idx,
    }
}
