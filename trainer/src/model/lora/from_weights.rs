//! What of a fresh adapter follows from the weights below it. Where these are in shards it is computed a
//! layer at a time, when the layer is whole.

use tch::no_grad;

use super::dora;
use crate::model::decoder::{Decoder, NamedTensors};

impl Decoder {
    /// Whether a fresh adapter has parameters that follow from the weights below it.
    pub(crate) fn adapter_follows_from_weights(&self) -> bool {
        self.lora.as_ref().is_some_and(|lora| lora.dora || !lora.modules_to_save.is_empty())
    }

    /// Gives those parameters their values, where all weights are here.
    pub(super) fn start_adapter(&mut self) {
        if !self.adapter_follows_from_weights() {
            return;
        }
        self.start_modules_to_save();
        for projection in self.projections() {
            let Some(lora) = &projection.lora else { continue };
            if let Some(magnitudes) = &lora.magnitudes {
                no_grad(|| {
                    magnitudes.shallow_clone().copy_(&dora::magnitudes(lora, &projection.weight.numbers()))
                });
            }
        }
    }

    /// Those parameters of a layer, or outside of the layers, whose weights are here, with their values.
    pub(crate) fn adapter_from_weights(&self, layer_idx: Option<usize>) -> NamedTensors {
        let layer = layer_idx.map(|layer_idx| &self.layers[layer_idx]);
        let of_tower = self.tower_projections().filter(|_| layer_idx.is_none());
        let projections = layer.into_iter().flat_map(|layer| &layer.projections).chain(of_tower);
        let magnitudes = projections.filter_map(|projection| {
            let lora = projection.lora.as_ref().filter(|lora| lora.magnitudes.is_some())?;
            Some((dora::peft_name(&projection.name), dora::magnitudes(lora, &projection.weight.numbers())))
        });
        magnitudes.chain(self.start_of_saved(layer_idx)).collect()
    }
}
