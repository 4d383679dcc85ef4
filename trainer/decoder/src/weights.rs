//! The weights of a model by name, read or initialized on request: all of a tensor, or the shard of one rank.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use rlt_api::spec::{Precision, QuantizationSpec};
use rlt_core::types::TokenId;
use rlt_layout::{CoveredRun, ReadGroup, TensorRun, TensorSlice};
use rlt_models::{ModelConfig, OutputHead, ParameterShape, TensorShape, classifier_head, stored_ranges};
use tch::kind::FLOAT_CPU;
use tch::{Device, Kind, Tensor, no_grad};

use super::checkpoint::{CHUNK, WeightFiles, read_json};
use super::error::ModelError;
use super::files::config::read_config;
use super::lora::LoraError;
use super::lora::folded::FoldedAdapter;
use super::mxfp4;
use super::names::{self, EMBEDDING, HEAD, is_label_head, layer_idx};
use super::quant_state;
use super::quantize::{self, QuantizedParts};
use super::random_init;

/// Source of a model's weights, checked against its configuration.
#[derive(Debug)]
pub struct Weights {
    config: ModelConfig,
    /// Stored tensors of each parameter, by the parameter's name in memory.
    stored: BTreeMap<String, Vec<TensorShape>>,
    quantized: QuantizedParts,
    source: Source,
    /// Adapters that are folded into the stored weights, in this order.
    adapters: Vec<FoldedAdapter>,
}

#[derive(Debug)]
enum Source {
    Files {
        files: WeightFiles,
        /// Whether the embedding is stored only under the head's name.
        embedding_under_head: bool,
        /// Seed of a classifier's head that the files lack.
        fresh_head: Option<u64>,
    },
    Fresh {
        seed: u64,
    },
}

impl Weights {
    /// Reads `config.json`, `generation_config.json` where there is one, and the headers of the weights in
    /// `dir`: one `model.safetensors` or shards with an index, F32, F16 or BF16, head tied or its own.
    ///
    /// # Errors
    /// [`ModelError`], with file and tensor, when a file is missing, cut off or not what its name says, and
    /// when a tensor is missing, left over, or of another shape or type than the configuration says.
    pub fn open(dir: &Path) -> Result<Self, ModelError> {
        let mut config = read_config(dir)?;
        let mut files = WeightFiles::open(dir)?;
        if config.vision.is_some() {
            files.rename(names::published_name);
        }
        if ModelConfig::leaves_tower_out(&read_json(&dir.join("config.json"))?) {
            let dir = dir.display();
            tracing::warn!(
                "the vision tower of {dir} is left out: only its text model is trained and exported"
            );
            files.select(names::text_model_name);
        }
        let embedding_under_head = check(&mut config, &files)?;
        Ok(Self::new(config, Source::Files { files, embedding_under_head, fresh_head: None }))
    }

    /// [`Self::open`] for a model with the head `head`: the stored head if it has the same kind, else a head
    /// that is drawn from `seed`.
    ///
    /// # Errors
    /// As of [`Self::open`].
    pub fn open_with_head(dir: &Path, head: OutputHead, seed: u64) -> Result<Self, ModelError> {
        let path = dir.join("config.json");
        let document = read_json(&path)?;
        let stored = classifier_head(&document).map(|(stored, _)| stored);
        if stored != Some(head) {
            return Ok(Self::open(dir)?.with_fresh_head(head, seed));
        }
        let config = ModelConfig::from_classifier_json(&document)
            .map_err(|source| ModelError::Config { path, source })?
            .with_head(head);
        let files = WeightFiles::open(dir)?;
        files.check(&expected(&config, &files), is_ignored(&config))?;
        Ok(Self::new(config, Source::Files { files, embedding_under_head: false, fresh_head: None }))
    }

    fn with_fresh_head(self, head: OutputHead, seed: u64) -> Self {
        let source = match self.source {
            Source::Files { files, embedding_under_head, .. } => {
                Source::Files { files, embedding_under_head, fresh_head: Some(seed) }
            }
            fresh @ Source::Fresh { .. } => fresh,
        };
        Self { adapters: self.adapters, ..Self::new(self.config.with_head(head), source) }
    }

    /// Adds the PEFT adapters of these folders, which are folded into the weights in this order.
    ///
    /// # Errors
    /// [`LoraError`] when one is not for linear layers of this model, or the weights are stored quantized.
    pub fn with_adapters<'a>(mut self, dirs: impl Iterator<Item = &'a Path>) -> Result<Self, LoraError> {
        for dir in dirs {
            if self.config.quantization.as_ref().is_some_and(|quantization| quantization.is_stored) {
                return Err(LoraError::QuantizedBase { dir: dir.to_owned() });
            }
            self.adapters.push(FoldedAdapter::open(dir, &self.config)?);
        }
        Ok(self)
    }

    /// Quantizes the weights as a job asks, from values in `precision`, unless files hold them quantized.
    ///
    /// # Errors
    /// [`ModelError::Quantization`] if files hold them quantized in another way, or the model has experts.
    pub fn quantized(
        self,
        spec: Option<&QuantizationSpec>,
        precision: Precision,
    ) -> Result<Self, ModelError> {
        let mut config = self.config.with_quantization(spec).map_err(ModelError::Quantization)?;
        if let Some(quantization) = config.quantization.as_mut().filter(|own| !own.is_stored) {
            quantization.stored = Some(precision);
        }
        Ok(Self { adapters: self.adapters, ..Self::new(config, self.source) })
    }

    /// Sets `pad` as the padding token, unless the configuration names one.
    #[must_use]
    pub fn with_pad(mut self, pad: Option<TokenId>) -> Self {
        self.config.pad_token_id = self.config.pad_token_id.or(pad);
        self
    }

    /// [`Self::open`] for a classifier: the weights of its body, and a head that [`Self::fill`] finds only by
    /// its own name.
    ///
    /// # Errors
    /// [`ModelError`], with file and tensor; a class that is no classifier is refused.
    pub fn open_classifier(dir: &Path) -> Result<(Self, OutputHead), ModelError> {
        let path = dir.join("config.json");
        let document = read_json(&path)?;
        let config = ModelConfig::from_classifier_json(&document)
            .map_err(|source| ModelError::Config { path, source })?;
        let files = WeightFiles::open(dir)?;
        // `from_classifier_json` has checked that the class is a classifier.
        let head = classifier_head(&document).map_or(OutputHead::Sequence, |(head, _)| head);
        files.check(&expected(&config.clone().with_head(head), &files), is_ignored(&config))?;
        let source = Source::Files { files, embedding_under_head: false, fresh_head: None };
        Ok((Self::new(config, source), head))
    }

    /// Weights that were never trained, drawn from `seed`. The same seed gives the same weights on every
    /// machine, and each rank draws only its shard.
    pub fn random_init(config: &ModelConfig, seed: u64) -> Self {
        Self::new(config.clone(), Source::Fresh { seed })
    }

    fn new(config: ModelConfig, source: Source) -> Self {
        let files = match &source {
            Source::Files { files, .. } => Some(files),
            Source::Fresh { .. } => None,
        };
        let parameters = config.parameters().into_iter();
        let stored = parameters.map(|parameter| (parameter.name.clone(), stored_as(parameter, files)));
        let tower = config.vision_tensors().into_iter().map(|tensor| (tensor.name.clone(), vec![tensor]));
        let stored = stored.chain(tower).collect();
        let quantized = QuantizedParts::new(&config);
        Self { config, stored, quantized, source, adapters: Vec::new() }
    }

    /// The model's configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Whether the model has a weight of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.stored.contains_key(name) || self.quantized.get(name).is_some()
    }

    /// Writes the run `tensor_run` into `values`, `[len]`, of any floating-point dtype and on any device.
    /// In addition to `values`, at most a chunk of the model is in memory, or the weight that is being
    /// quantized.
    ///
    /// # Errors
    /// [`ModelError`], with file and tensor, when a file cannot be read, or holds numbers that are not
    /// finite.
    pub fn fill(&self, tensor_run: &TensorRun<'_>, values: &Tensor) -> Result<(), ModelError> {
        let Some(part) = self.quantized.get(tensor_run.name) else {
            return self.fill_dense(tensor_run, values);
        };
        match (&self.source, &self.config.quantization) {
            (Source::Files { files, .. }, Some(quantization)) if quantization.is_stored => {
                quant_state::fill(files, quantization, &part.module, &part.tensor, tensor_run, values)
            }
            _ => {
                let read = |whole: &TensorRun<'_>, weight: &Tensor| self.fill_dense(whole, weight);
                self.quantized.fill(&self.config, part, tensor_run, values, read)
            }
        }
    }

    /// [`Self::fill`] for a slice of a tensor of which a rank has some indices. Ranges that are close to each
    /// other, such as parts of rows, are read together.
    ///
    /// # Errors
    /// As [`Self::fill`].
    pub fn fill_slice(&self, slice: &TensorSlice<'_>, values: &Tensor) -> Result<(), ModelError> {
        let narrow = |all: &Tensor, range: &Range<usize>| {
            no_grad(|| all.narrow(0, range.start as i64, range.len() as i64))
        };
        for ReadGroup { cover, runs, .. } in slice.read_groups(CHUNK) {
            if let [run] = runs.as_slice() {
                self.fill(&cover, &narrow(values, &run.in_slice))?;
                continue;
            }
            let read = Tensor::empty([cover.range.len() as i64], (values.kind(), values.device()));
            self.fill(&cover, &read)?;
            for CoveredRun { in_cover, in_slice } in &runs {
                no_grad(|| narrow(values, in_slice).copy_(&narrow(&read, in_cover)));
            }
        }
        Ok(())
    }

    /// [`Self::fill`] before quantization. With adapters the sum is computed in f32 and rounded once.
    fn fill_dense(&self, tensor_run: &TensorRun<'_>, values: &Tensor) -> Result<(), ModelError> {
        if !self.adapters.iter().any(|adapter| adapter.changes(tensor_run.name)) {
            return self.fill_as_stored(tensor_run, values);
        }
        for chunk in tensor_run.chunks(CHUNK) {
            let len = chunk.range.len() as i64;
            let sum = Tensor::zeros([len], (Kind::Float, Device::Cpu));
            self.fill_as_stored(&chunk, &sum)?;
            self.adapters.iter().try_for_each(|adapter| adapter.add_to(&chunk, &sum))?;
            let start = (chunk.range.start - tensor_run.range.start) as i64;
            no_grad(|| values.narrow(0, start, len).copy_(&sum));
        }
        Ok(())
    }

    /// [`Self::fill`] before adapters and quantization.
    fn fill_as_stored(&self, tensor_run: &TensorRun<'_>, values: &Tensor) -> Result<(), ModelError> {
        let stored = self.stored.get(tensor_run.name).map(Vec::as_slice);
        match stored {
            Some(stored) if stored.len() > 1 || stored[0].name != tensor_run.name => {
                self.fill_from(stored, tensor_run, values)
            }
            _ => self.fill_alone(tensor_run, values),
        }
    }

    /// The quantization error of a module's weight [out, in], f32 on the CPU; zeros if it is not quantized
    /// here.
    ///
    /// # Errors
    /// As [`Self::fill`].
    pub(super) fn quantization_error(&self, module: &str, size: [i64; 2]) -> Result<Tensor, ModelError> {
        match self.config.quantization_of(module).filter(|quantization| !quantization.is_stored) {
            Some(quantization) => {
                let read = |whole: &TensorRun<'_>, values: &Tensor| self.fill_dense(whole, values);
                quantize::error(quantization, module, size, read)
            }
            None => Ok(Tensor::zeros(size, FLOAT_CPU)),
        }
    }

    /// Fills a parameter that is `stored` as other tensors, reading the needed range of each.
    fn fill_from(
        &self,
        stored: &[TensorShape],
        tensor_run: &TensorRun<'_>,
        values: &Tensor,
    ) -> Result<(), ModelError> {
        let wanted = &tensor_run.range;
        for (tensor, range) in stored_ranges(stored) {
            let (start, end) = (range.start.max(wanted.start), range.end.min(wanted.end));
            if start >= end {
                continue;
            }
            let shape: Vec<i64> = tensor.shape.iter().map(|dim| *dim as i64).collect();
            let own = start - range.start..end - range.start;
            let of_tensor = TensorRun { name: &tensor.name, shape: &shape, range: own };
            let place = no_grad(|| values.narrow(0, (start - wanted.start) as i64, (end - start) as i64));
            self.fill_alone(&of_tensor, &place)?;
        }
        Ok(())
    }

    /// Whether `files` hold a weight of experts in MXFP4.
    fn is_mxfp4(&self, files: &WeightFiles, name: &str) -> bool {
        self.config.experts.is_some() && mxfp4::is_stored(files, name)
    }

    fn fill_alone(&self, tensor_run: &TensorRun<'_>, values: &Tensor) -> Result<(), ModelError> {
        let draw = |seed| {
            random_init::draw_into(&self.config, seed, tensor_run, values).map_err(|source| {
                ModelError::Torch {
                    tensor: tensor_run.name.to_owned(),
                    device: format!("{:?}", values.device()),
                    source,
                }
            })
        };
        match &self.source {
            Source::Files { fresh_head: Some(seed), .. } if is_label_head(tensor_run.name) => draw(*seed),
            Source::Files { files, embedding_under_head: true, .. } if tensor_run.name == EMBEDDING => {
                files.read_into(&tensor_run.named(HEAD), values)
            }
            Source::Files { files, .. } if self.is_mxfp4(files, tensor_run.name) => {
                mxfp4::fill(files, tensor_run, values)
            }
            Source::Files { files, .. } => files.read_into(tensor_run, values),
            Source::Fresh { seed } => draw(*seed),
        }
    }
}

/// Checks names, shapes and types. A head stored beside a tied embedding is treated as in transformers: if
/// equal it is the embedding, otherwise the two are not tied. Returns whether the embedding is stored only
/// under the head's name.
fn check(config: &mut ModelConfig, files: &WeightFiles) -> Result<bool, ModelError> {
    let tied = config.tie_word_embeddings;
    let embedding_under_head = tied && files.contains(HEAD) && !files.contains(EMBEDDING);
    let mut expected = expected(config, files);
    if embedding_under_head {
        rename(&mut expected, EMBEDDING, HEAD);
    } else if tied && files.contains(HEAD) {
        let shape = vec![config.vocab_size, config.hidden_size];
        expected.push(TensorShape { name: HEAD.to_owned(), shape });
    }
    let quantized = if config.quantization.is_some() { quant_state::modules(config) } else { Vec::new() };
    let is_part = |name: &str| quantized.iter().any(|(module, _)| quant_state::is_part(module, name));
    let packed = mxfp4::parameters(config, files);
    let is_packed = |name: &str| packed.iter().any(|parameter| parameter.name == name);
    expected.retain(|tensor| !is_part(&tensor.name) && !is_packed(&tensor.name));
    let is_ignored = is_ignored(config);
    files.check(&expected, |name| is_ignored(name) || is_part(name) || mxfp4::is_part(&packed, name))?;
    mxfp4::check(&packed, files)?;
    quant_state::check(config, files)?;
    if tied && files.contains(HEAD) && !embedding_under_head {
        config.tie_word_embeddings = files.are_equal([HEAD, EMBEDDING])?;
        if !config.tie_word_embeddings {
            tracing::warn!(
                "the configuration ties head and embedding, but the stored ones differ: both are kept"
            );
        }
    }
    Ok(embedding_under_head)
}

/// The tensors that the files of a model must hold.
fn expected(config: &ModelConfig, files: &WeightFiles) -> Vec<TensorShape> {
    let parameters = config.parameters().into_iter().flat_map(|parameter| stored_as(parameter, Some(files)));
    parameters.chain(config.vision_tensors()).collect()
}

/// Returns the stored tensors of a parameter: a single one if `files` have the parameter's name in memory,
/// else those of the family's published models.
fn stored_as(parameter: ParameterShape, files: Option<&WeightFiles>) -> Vec<TensorShape> {
    let ParameterShape { name, shape, stored } = parameter;
    let is_whole = files.is_some_and(|files| files.contains(&name));
    if is_whole { vec![TensorShape { name, shape }] } else { stored }
}

/// Accepts stored tensors that are not read: buffers of old versions of transformers that follow from the
/// configuration, and layers that predict further tokens.
fn is_ignored(config: &ModelConfig) -> impl Fn(&str) -> bool + use<> {
    let num_layers = config.num_layers;
    let ignores_layers = config.has_prediction_layers;
    move |name| {
        let is_behind = || ignores_layers && layer_idx(name).is_some_and(|layer_idx| layer_idx >= num_layers);
        name.ends_with(".rotary_emb.inv_freq") || is_behind()
    }
}

fn rename(tensors: &mut [TensorShape], from: &str, to: &str) {
    for tensor in tensors.iter_mut().filter(|tensor| tensor.name == from) {
        to.clone_into(&mut tensor.name);
    }
}
