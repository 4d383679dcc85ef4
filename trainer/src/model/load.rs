//! From a Hugging Face folder, or from a configuration alone, to a [`Decoder`].

use std::path::Path;

use rlt_api::plan::model_config::{ModelConfig, TensorShape};
use tch::Tensor;

use super::checkpoint::{WeightFiles, read_json};
use super::decoder::{Decoder, LoadOptions};
use super::error::ModelError;
use super::fresh::FreshWeights;
use super::layer::{DecoderLayer, LayerShape};
use super::projection::Projection;
use super::rope;

const EMBEDDING: &str = "model.embed_tokens.weight";
const HEAD: &str = "lm_head.weight";

/// Where the weights of a model come from, by name and shape.
pub(super) trait WeightSource {
    /// The tensor of this name with this shape, on any device and in any floating-point dtype.
    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor, ModelError>;
}

impl Decoder {
    /// Reads `config.json`, `generation_config.json` where there is one, and the weights in `dir`: one
    /// `model.safetensors` or shards with an index, F32, F16 or BF16, head tied or its own.
    ///
    /// # Errors
    /// [`ModelError`], with file and tensor, when a file is missing, cut off or not what its name says, and when a
    /// tensor is missing, left over, of another shape or type than the configuration says, or not finite.
    pub fn load(dir: &Path, options: &LoadOptions) -> Result<Self, ModelError> {
        let mut config = read_config(dir)?;
        let files = WeightFiles::open(dir)?;
        let source = CheckpointWeights::checked(&mut config, files)?;
        build(config, options, &source)
    }

    /// A model that was never trained, its weights drawn from `seed`; the same seed gives the same weights on every
    /// machine.
    ///
    /// # Errors
    /// [`ModelError::Torch`] when the device has no room.
    pub fn from_config(config: &ModelConfig, seed: u64, options: &LoadOptions) -> Result<Self, ModelError> {
        build(config.clone(), options, &FreshWeights { config, seed })
    }
}

/// Reads the model configuration of a folder, ending tokens from `generation_config.json` where it names some.
///
/// # Errors
/// [`ModelError`] with the file.
pub fn read_config(dir: &Path) -> Result<ModelConfig, ModelError> {
    let path = dir.join("config.json");
    let config_error = |path: &Path| {
        let path = path.to_owned();
        |source| ModelError::Config { path, source }
    };
    let config = ModelConfig::from_json(&read_json(&path)?).map_err(config_error(&path))?;
    let path = dir.join("generation_config.json");
    if !path.exists() {
        return Ok(config);
    }
    config.with_generation_config(&read_json(&path)?).map_err(config_error(&path))
}

/// Weights of a folder that were found to fit the configuration.
struct CheckpointWeights {
    files: WeightFiles,
    /// Whether the embedding is stored under the head's name alone.
    embedding_under_head: bool,
}

impl CheckpointWeights {
    /// Checks names, shapes and types, and settles as transformers does what a head stored beside a tied embedding
    /// means: equal, it is the embedding; different, the two are not tied after all.
    fn checked(config: &mut ModelConfig, files: WeightFiles) -> Result<Self, ModelError> {
        let tied = config.tie_word_embeddings;
        let embedding_under_head = tied && files.contains(HEAD) && !files.contains(EMBEDDING);
        let mut expected = config.tensors();
        if embedding_under_head {
            rename(&mut expected, EMBEDDING, HEAD);
        } else if tied && files.contains(HEAD) {
            let shape = vec![config.vocab_size, config.hidden_size];
            expected.push(TensorShape { name: HEAD.to_owned(), shape });
        }
        files.check(&expected, |name| name.ends_with(".rotary_emb.inv_freq"))?;
        if tied && files.contains(HEAD) && !embedding_under_head {
            config.tie_word_embeddings = files.read(HEAD)?.equal(&files.read(EMBEDDING)?);
            if !config.tie_word_embeddings {
                tracing::warn!(
                    "the configuration ties head and embedding, but the stored ones differ: both are kept"
                );
            }
        }
        Ok(Self { files, embedding_under_head })
    }
}

impl WeightSource for CheckpointWeights {
    fn tensor(&self, name: &str, _shape: &[usize]) -> Result<Tensor, ModelError> {
        self.files.read(if self.embedding_under_head && name == EMBEDDING { HEAD } else { name })
    }
}

fn rename(tensors: &mut [TensorShape], from: &str, to: &str) {
    for tensor in tensors.iter_mut().filter(|tensor| tensor.name == from) {
        to.clone_into(&mut tensor.name);
    }
}

/// Gives the tensor of a name and shape, checked, on the model's device.
type Place<'a> = dyn Fn(&str, &[usize]) -> Result<Tensor, ModelError> + 'a;

fn build(
    config: ModelConfig,
    options: &LoadOptions,
    source: &dyn WeightSource,
) -> Result<Decoder, ModelError> {
    let placed = |name: &str, shape: &[usize]| {
        let torch_error = |error| ModelError::Torch {
            tensor: name.to_owned(),
            device: format!("{:?}", options.device),
            source: error,
        };
        let tensor = source.tensor(name, shape)?;
        let moved =
            tensor.f_to_device_(options.device, options.storage, false, false).map_err(torch_error)?;
        Ok(moved.set_requires_grad(options.trainable))
    };
    let layers = (0..config.num_layers).map(|layer_idx| build_layer(&config, layer_idx, &placed));
    let vocabulary = [config.vocab_size, config.hidden_size];
    Ok(Decoder {
        layers: layers.collect::<Result<_, _>>()?,
        embedding: placed(EMBEDDING, &vocabulary)?,
        norm: placed("model.norm.weight", &[config.hidden_size])?,
        head: if config.tie_word_embeddings { None } else { Some(placed(HEAD, &vocabulary)?) },
        inverse_frequencies: rope::inverse_frequencies(&config, options.device),
        options: *options,
        lora: None,
        resting_place: None,
        config,
    })
}

fn build_layer(
    config: &ModelConfig,
    layer_idx: usize,
    placed: &Place<'_>,
) -> Result<DecoderLayer, ModelError> {
    let layer = format!("model.layers.{layer_idx}");
    let mut projections = Vec::with_capacity(7);
    for shape in config.projections() {
        let name = format!("{layer}.{}", shape.name);
        let weight = placed(&format!("{name}.weight"), &[shape.out_features, shape.in_features])?;
        let bias =
            if shape.bias { Some(placed(&format!("{name}.bias"), &[shape.out_features])?) } else { None };
        projections.push(Projection { name, weight, bias, lora: None });
    }
    let norm = |name: &str, width: usize| placed(&format!("{layer}.{name}.weight"), &[width]);
    let qk_norm = if config.qk_norm {
        Some((norm("self_attn.q_norm", config.head_dim)?, norm("self_attn.k_norm", config.head_dim)?))
    } else {
        None
    };
    Ok(DecoderLayer {
        shape: layer_shape(config, layer_idx),
        input_norm: norm("input_layernorm", config.hidden_size)?,
        post_attention_norm: norm("post_attention_layernorm", config.hidden_size)?,
        qk_norm,
        projections,
    })
}

fn layer_shape(config: &ModelConfig, layer_idx: usize) -> LayerShape {
    LayerShape {
        head_dim: config.head_dim as i64,
        norm_eps: config.rms_norm_eps,
        norm_offset: config.norm_offset,
        activation: config.hidden_activation,
        attention_scale: config.attention_scale(),
        window: config.layer_windows[layer_idx].map(|window| window as i64),
    }
}
