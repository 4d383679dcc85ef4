//! Low-rank adapters (Hu et al. 2021, arXiv 2106.09685) on a frozen decoder, compatible with PEFT.
//!
//! ```text
//! y = x W^T + scaling * (x A^T) B^T        A [rank, in], B [out, rank], both f32 and trainable
//! ```
//! With [`Adapter::Off`](super::Adapter) the same weights are the reference policy. B starts at zero (except
//! under `Orthogonal` and `Loftq`), so the first step computes the base's values bit for bit. Names, matching
//! rules, initialisation and files are PEFT's.

mod adapter;
mod config;
mod error;
mod experts;
pub(super) mod folded;
mod from_weights;
mod init;
mod loftq;
mod names;
mod patterns;
mod peft_files;
mod resize;
mod serving;
mod targets;

use std::collections::BTreeMap;
use std::path::Path;

use rlt_api::spec::{LoraInit, LoraSpec, VlmLora};
use tch::{Device, Kind, Tensor};

use super::decoder::Decoder;
use super::names::{is_label_head, is_of_tower};
use super::projection::{Linear, LoraPair};
pub use adapter::{AdapterExport, BaseModel};
pub use config::LoraConfig;
pub use error::LoraError;
pub(super) use names::magnitudes_name;
pub use names::{ADAPTED_MODEL, peft_names};
pub use patterns::Patterns;
pub use targets::ModuleMatch;
use targets::projection_sizes;

impl Decoder {
    /// Attaches the adapter that `spec.model.lora` describes: a fresh one drawn from `seed`, or the stored
    /// one of `adapterPath`. A stored adapter must have the targets of the spec, and its ranks and scaling
    /// too unless it is resized. Freezes everything but the adapter.
    ///
    /// # Errors
    /// [`LoraError`].
    pub fn attach_lora_spec(&mut self, spec: &LoraSpec, seed: u64) -> Result<(), LoraError> {
        self.attach_lora_meta(spec, seed)?;
        if spec.adapter_path.is_none() {
            self.start_adapter();
        }
        Ok(())
    }

    /// Attaches the adapter like [`Self::attach_lora_spec`], but to meta tensors, which have no values. Those
    /// parameters of a fresh adapter that are computed from the weights are set later, from
    /// [`Self::adapter_from_weights`].
    pub fn attach_lora_meta(&mut self, spec: &LoraSpec, seed: u64) -> Result<(), LoraError> {
        let config = LoraConfig::from_spec(spec);
        let Some(dir) = spec.adapter_path.as_ref().map(Path::new) else {
            self.check_loftq(&config)?;
            self.attach(&config, seed)?;
            return config.patterns.check_used(&self.adapted_names());
        };
        let stored = peft_files::continued(dir, &config, spec.resize_adapter)?;
        self.attach(&config, seed)?;
        self.allocate_modules_to_save();
        if spec.resize_adapter {
            self.read_resized_adapter(dir, &stored)
        } else {
            self.read_adapter_weights(dir)
        }
    }

    /// Attaches a fresh adapter, drawn from `seed`, and freezes everything else but a classifier's head and
    /// the modules that are saved with the adapter.
    ///
    /// # Errors
    /// [`LoraError`] when nothing is matched, a listed name matches nothing, or the rank is invalid.
    pub fn attach_lora(&mut self, config: &LoraConfig, seed: u64) -> Result<(), LoraError> {
        self.attach(config, seed)?;
        self.start_adapter();
        Ok(())
    }

    /// Attaches an adapter without setting those of its parameters that are computed from the model's
    /// weights.
    fn attach(&mut self, config: &LoraConfig, seed: u64) -> Result<(), LoraError> {
        if self.lora.is_some() {
            return Err(LoraError::AlreadyAttached);
        }
        if config.rank == 0 {
            return Err(LoraError::BadRank { expected: "a rank of at least 1", got: 0 });
        }
        if config.parts.adapts_vision() && self.vision.is_none() {
            return Err(LoraError::NoTower { got: config.parts });
        }
        let available = self.projection_names(config.parts);
        let config = &config.clone().in_own_names(&available);
        let matched = config.matched(&available)?;
        self.check_expert_targets(config)?;
        for (name, parameter) in self.named_parameters() {
            let _ = parameter.set_requires_grad(is_label_head(&name));
        }
        let device = self.device();
        let sizes = self.projection_sizes();
        for projection in self.projections_mut().filter(|projection| matched.contains(&projection.name)) {
            let (rank, scaling) = config.rank_and_scaling(&projection.name)?;
            if config.init == LoraInit::Orthogonal && rank % 2 == 1 {
                let expected = "an even rank for orthogonal matrices";
                return Err(LoraError::BadRank { expected, got: rank });
            }
            // A sharded weight has only local rows or columns, so its full size comes from the configuration.
            let size = sizes.get(&projection.name).copied();
            let size = size.unwrap_or_else(|| projection.weight.size());
            let (a, b) = init::matrices(config.init, rank, seed, &projection.name, size);
            let place = |tensor: Tensor| tensor.to_device(device).set_requires_grad(true);
            let (dropout, dropout_position) = (config.dropout, config.dropout_position);
            let pair =
                LoraPair { a: place(a), b: place(b), magnitudes: None, scaling, dropout, dropout_position };
            let [outputs, _] = size;
            let magnitudes = config.dora.then(|| place(Tensor::ones([outputs], (Kind::Float, Device::Cpu))));
            projection.lora = Some(LoraPair { magnitudes, ..pair });
        }
        self.attach_to_experts(config, seed)?;
        self.attach_modules_to_save(&config.modules_to_save)?;
        self.lora = Some(config.clone());
        Ok(())
    }

    /// The configuration of the attached adapter.
    pub fn lora(&self) -> Option<&LoraConfig> {
        self.lora.as_ref()
    }

    /// Every linear layer that may have an adapter: those of the text model, then those of a vision tower.
    pub(crate) fn projections(&self) -> impl Iterator<Item = &Linear> {
        self.layers.iter().flat_map(|layer| &layer.projections).chain(self.tower_projections())
    }

    /// The linear layers of a vision tower.
    pub(super) fn tower_projections(&self) -> impl Iterator<Item = &Linear> {
        self.vision.iter().flat_map(|tower| &tower.projections)
    }

    /// The names of the linear layers of `parts`.
    fn projection_names(&self, parts: VlmLora) -> Vec<String> {
        let is_meant = |projection: &&Linear| match is_of_tower(&projection.name) {
            true => parts.adapts_vision(),
            false => parts.adapts_text(),
        };
        self.projections().filter(is_meant).map(|projection| projection.name.clone()).collect()
    }

    /// The names of the modules and parameters that have adapters.
    fn adapted_names(&self) -> Vec<String> {
        let projections = self.projections().filter(|projection| projection.lora.is_some());
        let experts = self.layers.iter().filter_map(|layer| layer.experts());
        let parameters = experts.flat_map(|experts| {
            let router = experts.router_lora.is_some().then(|| experts.router_name());
            experts.adapted().map(|(tensor, ..)| experts.tensor_name(tensor)).chain(router)
        });
        projections.map(|projection| projection.name.clone()).chain(parameters).collect()
    }

    fn projection_sizes(&self) -> BTreeMap<String, [i64; 2]> {
        projection_sizes(&self.config)
    }

    fn projections_mut(&mut self) -> impl Iterator<Item = &mut Linear> {
        let of_text = self.layers.iter_mut().flat_map(|layer| &mut layer.projections);
        of_text.chain(self.vision.iter_mut().flat_map(|tower| &mut tower.projections))
    }
}

#[cfg(test)]
mod expert_tests;
#[cfg(test)]
mod tests;
