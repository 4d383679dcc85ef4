//! Modules whose full weights are trained and saved with an adapter (PEFT's `modules_to_save`): embedding,
//! head and norms. The base keeps its own weights, which are the reference policy's. A classifier's head is
//! trained with any adapter, and has no frozen copy (`is_label_head`).

use std::collections::BTreeMap;

use rlt_api::spec::is_module_to_save;
use tch::{Kind, Tensor, no_grad};

use super::decoder::{Decoder, SavedModules};
use super::layer::DecoderLayer;
use super::lora::{ADAPTED_MODEL, LoraError};
use super::names::{EMBEDDING, is_label_head};
use super::norms::{LayerNorms, Norm};
use super::parameters::{NamedTensors, meta};
use super::projection::Adapter;

/// The name of the final norm's weight.
const FINAL_NORM: &str = "model.norm.weight";

/// Returns the trained copy if there is one and the adapter is applied, else the base's tensor.
fn chosen<'a>(saved: &'a Option<Tensor>, base: &'a Tensor, adapter: Adapter) -> &'a Tensor {
    saved.as_ref().filter(|_| adapter == Adapter::On).unwrap_or(base)
}

impl Decoder {
    /// The embedding [vocabulary, hidden] with or without the adapter.
    pub fn embedding_weight(&self, adapter: Adapter) -> &Tensor {
        chosen(&self.saved.embedding, &self.embedding, adapter)
    }

    /// The weight of the final norm [hidden] with or without the adapter.
    pub fn norm_weight(&self, adapter: Adapter) -> &Tensor {
        chosen(&self.saved.norm, &self.norm, adapter)
    }

    /// The head's weight [vocabulary, hidden] in the storage dtype, which is the embedding if they are tied;
    /// f32 if it is trained with an adapter. That of a classifier is [labels, hidden] in f32.
    pub fn head_weight(&self, adapter: Adapter) -> &Tensor {
        match &self.head {
            Some(head) => chosen(&self.saved.head, head, adapter),
            None => self.embedding_weight(adapter),
        }
    }

    /// Adds meta tensors of trained copies of the modules that `names` matches. The base's weights may not be
    /// loaded yet, so the copies get memory and values later: from [`Self::start_modules_to_save`], from an
    /// adapter's file, or as shards.
    ///
    /// # Errors
    /// [`LoraError::UnknownModuleToSave`], and [`LoraError::TiedHead`].
    pub(super) fn attach_modules_to_save(&mut self, names: &[String]) -> Result<(), LoraError> {
        let is_tied = self.head.is_none() && self.config.tie_word_embeddings;
        let is_wanted = |name: &str| is_module_to_save(names, name);
        if is_tied && is_wanted("lm_head.weight") && !is_wanted(EMBEDDING) {
            return Err(LoraError::TiedHead);
        }
        self.check_modules_to_save(names)?;
        let copy = |name: &str, weight: &Tensor| {
            let numbers = (Kind::Float, weight.device());
            is_wanted(name).then(|| meta(&weight.size(), numbers).set_requires_grad(true))
        };
        let head = self.head.as_ref().filter(|_| !is_label_head(self.config.head_name()));
        self.saved = SavedModules {
            embedding: copy(EMBEDDING, &self.embedding),
            norm: copy(FINAL_NORM, &self.norm),
            head: head.and_then(|head| copy(self.config.head_name(), head)),
        };
        for (layer_idx, layer) in self.layers.iter_mut().enumerate() {
            layer.saved_norms = layer.norms.with_copies(|norm| {
                copy(&format!("model.layers.{layer_idx}.{}.weight", norm.name), &norm.weight)
            });
        }
        Ok(())
    }

    /// Refuses a name that matches no module, or one whose module is adapted by low-rank matrices.
    fn check_modules_to_save(&self, names: &[String]) -> Result<(), LoraError> {
        let norms = self.layers.iter().flat_map(|layer| layer.norms.iter().map(|norm| norm.name));
        let mut available: Vec<&str> = norms.collect();
        available.extend(["model.embed_tokens", "model.norm", "lm_head"]);
        available.extend(self.config.head_name().strip_suffix(".weight"));
        let projections = self.layers.iter().flat_map(|layer| &layer.projections);
        let projections: Vec<&str> = projections.map(|projection| projection.name.as_str()).collect();
        available.sort_unstable();
        available.dedup();
        let is_known = |name: &String| {
            let is_meant = |module: &&str| module.ends_with(name.as_str());
            available.iter().any(is_meant) && !projections.iter().any(is_meant)
        };
        match names.iter().find(|name| !is_known(name)) {
            None => Ok(()),
            Some(name) => {
                Err(LoraError::UnknownModuleToSave { name: name.clone(), available: available.join(", ") })
            }
        }
    }

    /// The trained copies of a layer's modules, or of those outside of the layers, under PEFT's names.
    pub(super) fn saved_parameters(&self, layer_idx: Option<usize>) -> NamedTensors {
        let base = self.saved_by_base(layer_idx).into_iter();
        base.map(|(name, (saved, _))| (format!("{ADAPTED_MODEL}{name}"), saved)).collect()
    }

    /// The trained copies of all modules, under PEFT's names.
    pub(super) fn saved_in_all_units(&self) -> NamedTensors {
        self.parts().flat_map(|layer_idx| self.saved_parameters(layer_idx)).collect()
    }

    /// Initial values of the trained copies of a unit, f32 in new memory, under PEFT's names.
    pub(super) fn start_of_saved(&self, layer_idx: Option<usize>) -> NamedTensors {
        let base = self.saved_by_base(layer_idx).into_iter();
        let start = |(name, (_, base)): (String, (Tensor, Tensor))| {
            (format!("{ADAPTED_MODEL}{name}"), no_grad(|| base.detach().to_dtype(Kind::Float, false, true)))
        };
        base.map(start).collect()
    }

    /// The trained copies of a unit, each with the weight that it replaces, by that weight's name.
    pub(super) fn saved_by_base(&self, layer_idx: Option<usize>) -> BTreeMap<String, (Tensor, Tensor)> {
        let pair = |name: String, saved: &Tensor, base: &Tensor| {
            (name, (saved.shallow_clone(), base.shallow_clone()))
        };
        if let Some(layer) = layer_idx.map(|layer_idx| &self.layers[layer_idx]) {
            let norms = layer.norms.iter().zip(layer.saved_norms.iter().flat_map(LayerNorms::iter));
            let trained = norms.filter(|(_, saved)| saved.weight.requires_grad());
            let name = |norm: &Norm| format!("model.layers.{}.{}.weight", layer.shape.layer_idx, norm.name);
            return trained.map(|(base, saved)| pair(name(base), &saved.weight, &base.weight)).collect();
        }
        let SavedModules { embedding, norm, head } = &self.saved;
        let outer = [
            (EMBEDDING, embedding, Some(&self.embedding)),
            (FINAL_NORM, norm, Some(&self.norm)),
            (self.config.head_name(), head, self.head.as_ref()),
        ];
        let outer = outer.into_iter().filter_map(|(name, saved, base)| Some((name, saved.as_ref()?, base?)));
        outer.map(|(name, saved, base)| pair(name.to_owned(), saved, base)).collect()
    }

    /// Allocates the trained copies and fills them with the base's values; the base must be fully loaded.
    pub(super) fn start_modules_to_save(&mut self) {
        self.allocate_modules_to_save();
        let pairs = self.parts().flat_map(|layer_idx| self.saved_by_base(layer_idx).into_values());
        pairs.for_each(|(mut saved, base)| no_grad(|| saved.copy_(&base)));
    }

    /// Allocates the trained copies, so that an adapter's file can be read into them.
    pub(super) fn allocate_modules_to_save(&mut self) {
        let SavedModules { embedding, norm, head } = &mut self.saved;
        let norms = self.layers.iter_mut().filter_map(|layer| layer.saved_norms.as_mut());
        let norms = norms.flat_map(|norms| norms.iter_mut().map(|norm| &mut norm.weight));
        let outer = [embedding, norm, head].into_iter().flatten();
        for weight in outer.chain(norms).filter(|weight| weight.requires_grad()) {
            *weight = Tensor::zeros(weight.size(), (Kind::Float, weight.device())).set_requires_grad(true);
        }
    }
}

impl DecoderLayer {
    /// Returns the layer's norms; if the adapter is applied and trains norms, its copies of them.
    pub(crate) fn norms(&self, adapter: Adapter) -> &LayerNorms {
        self.saved_norms.as_ref().filter(|_| adapter == Adapter::On).unwrap_or(&self.norms)
    }
}
