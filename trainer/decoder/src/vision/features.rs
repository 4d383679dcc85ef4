//! Features of images from a tower: computed in a pass without gradients, or cached.

use std::sync::Arc;

use rlt_core::images::PromptImage;
use tch::{Tensor, no_grad};

use super::forward::Forward;
use super::tower::VisionTower;
use crate::projection::Adapter;

impl VisionTower {
    /// The features of images, concatenated, `[n, k * hidden]` in the compute dtype, where k is
    /// `VisionConfig::features_per_token`. Features that do not change are computed once.
    pub(crate) fn features(&self, images: &[Arc<PromptImage>], adapter: Adapter) -> Tensor {
        let features: Vec<Tensor> = images.iter().map(|image| self.features_of(image, adapter)).collect();
        Tensor::cat(&features, 0)
    }

    /// The features of one image, `[n, k * hidden]`, from the cache if they do not change.
    pub(crate) fn features_of(&self, image: &PromptImage, adapter: Adapter) -> Tensor {
        let forward = Forward { tower: self, adapter, dropout: None };
        let compute = || no_grad(|| forward.compute(image));
        if !self.keeps(adapter) {
            return compute();
        }
        if let Some(features) = self.feature_cache.borrow_mut().get(image.digest) {
            return features;
        }
        let features = compute();
        self.feature_cache.borrow_mut().insert(image.digest, &features);
        features
    }

    /// Whether features may be cached: those that do not change during the lifetime of this tower.
    fn keeps(&self, adapter: Adapter) -> bool {
        let with_adapter = adapter == Adapter::On && self.is_adapted();
        match self.is_snapshot {
            true => with_adapter == self.is_adapted(),
            false => !with_adapter && !self.trains_weights(),
        }
    }
}
