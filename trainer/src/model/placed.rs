//! Features of images at the places of their tokens in a stream. Never here: how they are computed.
//!
//! Shapes: t tokens of a stream, n those of images, k rows of features of a token, d hidden size.

use tch::Tensor;

/// Features of the tokens of images: the first row of each replaces its embedding, the others are added
/// after layers, the second after the first layer (Qwen3-VL's DeepStack).
#[derive(Debug)]
pub(crate) struct PlacedFeatures {
    /// i64 [n].
    places_n: Tensor,
    /// [n, k, d].
    features_nkd: Tensor,
}

impl PlacedFeatures {
    /// Of `features`, [n, k * d], at `places`, i64 [n], for a model `hidden_size` wide.
    pub(crate) fn new(places_n: Tensor, features: &Tensor, hidden_size: usize) -> Self {
        Self { places_n, features_nkd: features.unflatten(1, [-1, hidden_size as i64]) }
    }

    /// Embeddings [t, d] with features in the places of images.
    pub(crate) fn in_place_of(&self, embedded_td: &Tensor) -> Tensor {
        let features_nd = self.features_nkd.select(1, 0).to_kind(embedded_td.kind());
        embedded_td.index_copy(0, &self.places_n, &features_nd)
    }

    /// What the layer `layer_idx` made, [t, d], and the features that are added after it.
    pub(crate) fn added_after(&self, layer_idx: usize, hidden_td: Tensor) -> Tensor {
        let row = layer_idx as i64 + 1;
        if row >= self.features_nkd.size()[1] {
            return hidden_td;
        }
        let features_nd = self.features_nkd.select(1, row).to_kind(hidden_td.kind());
        hidden_td.index_add(0, &self.places_n, &features_nd)
    }
}
