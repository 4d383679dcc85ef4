//! Features of images at the positions of their placeholder tokens. How they are computed is in
//! [`crate::vision`].
//!
//! Shapes: t packed tokens, n placeholder tokens of images, k features of a token, d hidden size.

use tch::Tensor;

/// Features of image tokens. The first feature of a token replaces its embedding. Each further feature is
/// added to the output of a layer, the second feature after the first layer (Qwen3-VL's DeepStack).
#[derive(Debug)]
pub struct ImageEmbeddings {
    /// Index of each placeholder token among the packed tokens, i64 [n].
    places_n: Tensor,
    /// Features of each placeholder token, [n, k, d].
    features_nkd: Tensor,
}

impl ImageEmbeddings {
    /// Places `features`, [n, k * hidden_size], at the tokens `places_n`, i64 [n].
    pub fn new(places_n: Tensor, features: &Tensor, hidden_size: usize) -> Self {
        Self { places_n, features_nkd: features.unflatten(1, [-1, hidden_size as i64]) }
    }

    /// Returns the embeddings [t, d] with those of placeholder tokens replaced by the first features.
    pub fn in_place_of(&self, embedded_td: &Tensor) -> Tensor {
        let features_nd = self.features_nkd.select(1, 0).to_kind(embedded_td.kind());
        embedded_td.index_copy(0, &self.places_n, &features_nd)
    }

    /// Adds the features that belong after layer `layer_idx` to its output [t, d], if there are any.
    pub fn added_after(&self, layer_idx: usize, hidden_td: Tensor) -> Tensor {
        let row = layer_idx as i64 + 1;
        if row >= self.features_nkd.size()[1] {
            return hidden_td;
        }
        let features_nd = self.features_nkd.select(1, row).to_kind(hidden_td.kind());
        hidden_td.index_add(0, &self.places_n, &features_nd)
    }
}
