//! Parameters of a fresh adapter that are computed from the base weights: DoRA's magnitudes and the copies of
//! `modulesToSave`. If the weights are sharded, they are computed layer by layer, while the layer is
//! unsharded.

use tch::{Kind, no_grad};

use super::names::magnitudes_name;
use crate::decoder::Decoder;
use crate::parameters::NamedTensors;

impl Decoder {
    /// Whether a fresh adapter has parameters that are computed from the base weights.
    pub fn adapter_follows_from_weights(&self) -> bool {
        self.lora.as_ref().is_some_and(|lora| lora.dora || !lora.modules_to_save.is_empty())
    }

    /// Sets the parameters that are computed from the base weights. All weights must be loaded.
    pub(super) fn start_adapter(&mut self) {
        if !self.adapter_follows_from_weights() {
            return;
        }
        self.start_modules_to_save();
        for projection in self.projections() {
            let Some(lora) = &projection.lora else { continue };
            if let Some(magnitudes) = &lora.magnitudes {
                let norms = lora.adapted_norms(&projection.weight.numbers(), Kind::Float);
                no_grad(|| magnitudes.shallow_clone().copy_(&norms));
            }
        }
    }

    /// Computes the values of the parameters that depend on the base weights of layer `layer_idx`, or with
    /// `None` of the unit outside of the layers. The weights of that unit must be unsharded.
    pub fn adapter_from_weights(&self, layer_idx: Option<usize>) -> NamedTensors {
        let layer = layer_idx.map(|layer_idx| &self.layers[layer_idx]);
        let of_tower = self.tower_projections().filter(|_| layer_idx.is_none());
        let projections = layer.into_iter().flat_map(|layer| &layer.projections).chain(of_tower);
        let magnitudes = projections.filter_map(|projection| {
            let lora = projection.lora.as_ref().filter(|lora| lora.magnitudes.is_some())?;
            let norms = lora.adapted_norms(&projection.weight.numbers(), Kind::Float);
            Some((magnitudes_name(&projection.name), norms))
        });
        magnitudes.chain(self.start_of_saved(layer_idx)).collect()
    }
}
