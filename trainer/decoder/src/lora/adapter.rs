//! Adapters on disk in PEFT's layout: `adapter_config.json` and `adapter_model.safetensors`.

mod config;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use rlt_models::{OutputHead, ParameterShape, TensorShape};
use tch::Tensor;

use super::error::LoraError;
use super::experts;
use super::names::{ADAPTED_MODEL, CONFIG_FILE, WEIGHTS_FILE, magnitudes_name, peft_names, stored_name};
use super::peft_files::{adapted_parts, open_weights, read_adapter_config};
use crate::checkpoint::{WeightFiles, read_json};
use crate::decoder::Decoder;
use crate::experts::ExpertWeights;
use crate::export::{StoredAs, TensorWriter, in_size, write_json};
use crate::names::{self, EMBEDDING, HEAD, is_label_head};
use crate::parameters::NamedTensors;
use crate::projection::Linear;
pub use config::BaseModel;
use config::adapter_config;

impl Decoder {
    /// Attaches the PEFT adapter in `dir` and freezes everything else.
    ///
    /// # Errors
    /// [`LoraError`] with the file and the field or tensor.
    pub fn load_adapter(&mut self, dir: &Path) -> Result<(), LoraError> {
        let mut config = read_adapter_config(dir)?;
        config.parts = adapted_parts(dir)?.unwrap_or_default();
        self.attach(&config, 0)?;
        self.allocate_modules_to_save();
        self.read_adapter_weights(dir)
    }

    /// Replaces the attached adapter's parameters by those in `dir`.
    pub(super) fn read_adapter_weights(&mut self, dir: &Path) -> Result<(), LoraError> {
        let files = open_weights(dir)?;
        self.check_tying(dir)?;
        // A classifier's head is read from the adapter if the adapter has one.
        let is_label_head = |name: &str| name.strip_prefix(ADAPTED_MODEL).is_some_and(is_label_head);
        let mut matrices = self.saved_with_adapter();
        matrices.retain(|(name, _)| !is_label_head(name) || files.shape(name).is_some());
        matrices.retain(|(name, _)| !self.is_of_other_head(name));
        let shape_of = |(name, tensor): &(String, Tensor)| TensorShape {
            name: name.clone(),
            shape: tensor.size().iter().map(|dim| *dim as usize).collect(),
        };
        let old = self.experts_in_old_layout(dir, &files)?;
        let expected = matrices.iter().filter(|(name, _)| !old.contains(name)).map(shape_of);
        files
            .check(&expected.collect::<Vec<_>>(), |name| old.contains(name) || self.is_of_other_head(name))?;
        for (name, mut matrix) in matrices.into_iter().filter(|(name, _)| !old.contains(name)) {
            let stored = files.read(&name)?;
            tch::no_grad(|| matrix.copy_(&stored));
        }
        Ok(())
    }

    /// Refuses an adapter that trained the embedding separately from a head that is tied to it in this model.
    pub(super) fn check_tying(&self, dir: &Path) -> Result<(), LoraError> {
        let is_tied = self.config.tie_word_embeddings && self.config.head == OutputHead::Vocabulary;
        if !is_tied || self.saved_by_base(None).keys().all(|name| name != EMBEDDING) {
            return Ok(());
        }
        let path = dir.join(CONFIG_FILE);
        let document = read_json(&path)?;
        match document["ensure_weight_tying"].as_bool() {
            Some(true) => Ok(()),
            _ => Err(LoraError::BadConfig {
                field: "ensure_weight_tying".to_owned(),
                expected: "true, as the model's head is its embedding and stays so".to_owned(),
                got: document["ensure_weight_tying"].to_string(),
                path,
            }),
        }
    }

    /// Whether a tensor of an adapter is a head, although this decoder has no separate one: the backbone of a
    /// critic has none, and for a tied head PEFT writes the embedding a second time.
    pub(super) fn is_of_other_head(&self, name: &str) -> bool {
        self.head.is_none() && name.strip_prefix(ADAPTED_MODEL) == Some(HEAD)
    }

    /// Reads those matrices of experts' adapters that are stored in the layout of PEFT 0.18, and returns
    /// their names.
    fn experts_in_old_layout(&self, dir: &Path, files: &WeightFiles) -> Result<BTreeSet<String>, LoraError> {
        let mut old = BTreeSet::new();
        let experts = self.layers.iter().filter_map(|layer| layer.experts());
        if experts.clone().all(|experts| experts.adapted().next().is_none()) {
            return Ok(old);
        }
        let path = dir.join(CONFIG_FILE);
        let document = read_json(&path)?;
        for experts in experts {
            for (_, lora, names) in experts.adapted() {
                let shapes = [files.shape(&names[0]), files.shape(&names[1])];
                let [Some(shape_a), Some(shape_b)] = shapes else { continue };
                if experts::is_in_old_layout(lora, [shape_a, shape_b], &document, &path, &names[0])? {
                    let (a, b) = (files.read(&names[0])?, files.read(&names[1])?);
                    let (a, b) = experts::from_old_layout(&a, &b, experts.router.size()[0]);
                    tch::no_grad(|| {
                        lora.a.shallow_clone().copy_(&a);
                        lora.b.shallow_clone().copy_(&b);
                    });
                    old.extend(names);
                }
            }
        }
        Ok(old)
    }

    /// Writes the attached adapter to `dir` as PEFT does, matrices in f32; `base_model` is the base model
    /// that PEFT loads.
    ///
    /// # Errors
    /// [`LoraError::NoAdapter`] without an adapter, and [`LoraError::Model`] when a file cannot be written.
    pub fn save_adapter(&self, dir: &Path, base_model: Option<&BaseModel>) -> Result<(), LoraError> {
        let mut export = AdapterExport::begin(self, dir, base_model)?;
        self.parts().try_for_each(|layer_idx| export.write(layer_idx))?;
        export.finish()
    }

    /// The content of an adapter's file: its matrices, the trained copies of `modulesToSave`, and a
    /// classifier's head, which is trained with any adapter.
    fn saved_with_adapter(&self) -> Vec<(String, Tensor)> {
        let is_head = |(name, _): &(String, Tensor)| is_label_head(name);
        let head = self.base_parameters().into_iter().filter(is_head);
        let head = head.map(|(name, tensor)| (format!("{ADAPTED_MODEL}{name}"), tensor));
        // PEFT expects a tied head, too.
        let outer = self.saved_by_base(None);
        let tied = outer
            .get(EMBEDDING)
            .filter(|_| self.config.tie_word_embeddings && self.config.head == OutputHead::Vocabulary);
        let tied = tied.map(|(saved, _)| (format!("{ADAPTED_MODEL}{HEAD}"), saved.shallow_clone()));
        // Parameters outside of the layers are written first.
        tied.into_iter().chain(head).chain(self.adapter_parameters()).collect()
    }

    /// Full shapes of the tensors that are saved with an adapter, by PEFT's names. Ranks may hold only shards
    /// of the tensors.
    fn sizes_with_adapter(&self) -> BTreeMap<String, Vec<i64>> {
        let of_model = |ParameterShape { name, shape, .. }: ParameterShape| {
            (format!("{ADAPTED_MODEL}{name}"), shape.iter().map(|dim| *dim as i64).collect())
        };
        let mut sizes: BTreeMap<String, Vec<i64>> =
            self.config.parameters().into_iter().map(of_model).collect();
        if let Some(embedding) = sizes.get(&format!("{ADAPTED_MODEL}{EMBEDDING}")).cloned() {
            // A tied head is not a parameter of its own.
            sizes.entry(format!("{ADAPTED_MODEL}{HEAD}")).or_insert(embedding);
        }
        let whole = self.projection_sizes();
        for (projection, lora) in self.projections().filter_map(|one| Some((one, one.lora.as_ref()?))) {
            let Some([outputs, inputs]) = whole.get(&projection.name).copied() else { continue };
            let [name_a, name_b] = peft_names(&projection.name);
            sizes.insert(name_a, vec![lora.a.size()[0], inputs]);
            sizes.insert(name_b, vec![outputs, lora.b.size()[1]]);
        }
        sizes
    }

    /// Every matrix of the adapter under PEFT's name.
    pub fn adapter_parameters(&self) -> Vec<(String, Tensor)> {
        let mut parameters = self.saved_parameters(None);
        parameters.extend(self.tower_projections().flat_map(adapter_of));
        for (layer_idx, layer) in self.layers.iter().enumerate() {
            parameters.extend(layer.projections.iter().flat_map(adapter_of));
            parameters.extend(layer.experts().into_iter().flat_map(ExpertWeights::adapter_parameters));
            parameters.extend(self.saved_parameters(Some(layer_idx)));
        }
        parameters
    }
}

/// The matrices of a linear layer's adapter, where it has one, under PEFT's names.
fn adapter_of(projection: &Linear) -> NamedTensors {
    let Some(lora) = &projection.lora else { return NamedTensors::new() };
    let [name_a, name_b] = peft_names(&projection.name);
    let magnitudes = lora.magnitudes.iter().map(Tensor::shallow_clone);
    let magnitudes = magnitudes.map(|values| (magnitudes_name(&projection.name), values));
    let pair = [(name_a, lora.a.shallow_clone()), (name_b, lora.b.shallow_clone())];
    pair.into_iter().chain(magnitudes).collect()
}

/// An adapter's export in progress, which writes unit by unit and reads only the current one.
#[derive(Debug)]
pub struct AdapterExport<'a> {
    decoder: &'a Decoder,
    file: TensorWriter,
}

impl<'a> AdapterExport<'a> {
    /// Begins [`Decoder::save_adapter`]: writes the configuration and the header of the matrices.
    ///
    /// # Errors
    /// As of [`Decoder::save_adapter`].
    pub fn begin(
        decoder: &'a Decoder,
        dir: &Path,
        base_model: Option<&BaseModel>,
    ) -> Result<Self, LoraError> {
        let no_adapter = || LoraError::NoAdapter { dir: dir.to_owned() };
        let config = decoder.lora.as_ref().ok_or_else(no_adapter)?;
        write_json(&dir.join(CONFIG_FILE), &adapter_config(decoder, config, base_model))?;
        let matrices = decoder.saved_with_adapter();
        let name = |own: &str| stored_name(&decoder.config, own);
        let sizes = decoder.sizes_with_adapter();
        let whole = |own: &str, tensor: &Tensor| {
            sizes.get(own).map_or_else(|| tensor.shallow_clone(), |size| in_size(tensor, size))
        };
        let stored = matrices.iter().map(|(own, tensor)| (name(own), StoredAs::plain(&whole(own, tensor))));
        let file = TensorWriter::begin(&dir.join(WEIGHTS_FILE), &stored.collect::<Vec<_>>())?;
        Ok(Self { decoder, file })
    }

    /// Writes the matrices of layer `layer_idx`, or with `None` those outside of the layers.
    ///
    /// # Errors
    /// [`LoraError::Model`] when the file cannot be written.
    pub fn write(&mut self, layer_idx: Option<usize>) -> Result<(), LoraError> {
        let matrices = self.decoder.saved_with_adapter().into_iter();
        let of_part = matrices.filter(|(name, _)| names::layer_idx(name) == layer_idx);
        for (_, matrix) in of_part {
            self.file.write(&StoredAs::plain(&matrix))?;
        }
        Ok(())
    }

    /// Renames the finished file of matrices to its final name, after the last layer.
    ///
    /// # Errors
    /// [`LoraError::Model`] when the file cannot be written.
    pub fn finish(self) -> Result<(), LoraError> {
        Ok(self.file.finish()?)
    }
}
