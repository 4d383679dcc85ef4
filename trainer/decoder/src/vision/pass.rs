//! Features of a micro-batch's images in a pass that trains the tower or its adapters: forward, and backward
//! from the gradient of the features. Images are computed one by one, so that the backward pass may recompute
//! each and keep only one graph at a time.
//!
//! Shapes: n placeholder tokens of images, k features of a token, d hidden size, t tokens of the micro-batch.

use std::sync::Arc;

use rlt_core::images::PromptImage;
use rlt_torch::backward;
use tch::Tensor;

use super::forward::Forward;
use super::tower::VisionTower;
use crate::decoder::Decoder;
use crate::image_embeddings::ImageEmbeddings;
use crate::layer::LayerContext;
use crate::packed::{PackedImages, PackedInput};
use crate::projection::{Adapter, Dropout};

/// A forward pass over images whose features need a gradient.
#[derive(Debug)]
pub struct TowerPass {
    images: Vec<Arc<PromptImage>>,
    /// Index of each placeholder token among the tokens, i64 [n].
    places_n: Tensor,
    /// The features, a leaf, [n, k d].
    features: Tensor,
    /// The features of each image with their graphs; empty if the backward pass recomputes them.
    graphs: Vec<Tensor>,
    dropout_seed: Option<u64>,
}

impl Decoder {
    /// Whether training passes need gradients in the vision tower.
    pub(crate) fn trains_tower(&self) -> bool {
        self.vision.as_ref().is_some_and(VisionTower::is_trained)
    }

    /// Clears cached features of images, after weights have changed.
    pub fn forget_images(&self) {
        self.vision.iter().filter(|tower| tower.is_own).for_each(VisionTower::forget);
    }

    /// The features of a micro-batch's images in a pass without gradients; `None` if it has no images.
    ///
    /// # Panics
    /// If there are images and the tower was never read ([`Self::read_vision`]).
    pub fn placed_features(&self, input: &PackedInput, adapter: Adapter) -> Option<ImageEmbeddings> {
        let PackedImages { images, places } = input.images.as_ref()?;
        let features = self.image_features(images, adapter);
        Some(ImageEmbeddings::new(places.shallow_clone(), &features, self.config.hidden_size))
    }

    /// The features of a micro-batch's images in a pass with gradients. If the tower is trained, also the
    /// pass for [`TowerPass::backward`], with the images' graphs, or without them if it `recomputes`.
    ///
    /// # Panics
    /// As [`Self::placed_features`].
    pub fn trained_features(
        &self,
        input: &PackedInput,
        context: &LayerContext,
        recomputes: bool,
    ) -> (Option<ImageEmbeddings>, Option<TowerPass>) {
        let Some(images) = input.images.as_ref().filter(|_| self.trains_tower()) else {
            return (self.placed_features(input, context.adapter), None);
        };
        let PackedImages { images, places } = images;
        let compute = || {
            let tower = PassTower::of(self, context.dropout_seed);
            images.iter().map(|image| tower.features(image)).collect::<Vec<Tensor>>()
        };
        let (features, graphs): (Vec<Tensor>, Vec<Tensor>) = match recomputes {
            true => (tch::no_grad(compute), Vec::new()),
            false => compute().into_iter().map(|graph| (graph.detach(), graph)).unzip(),
        };
        let features = Tensor::cat(&features, 0).set_requires_grad(true);
        let placed = ImageEmbeddings::new(places.shallow_clone(), &features, self.config.hidden_size);
        let (images, places_n) = (images.clone(), places.shallow_clone());
        let pass = TowerPass { images, places_n, features, graphs, dropout_seed: context.dropout_seed };
        (Some(placed), Some(pass))
    }
}

/// The tower of a decoder for the images of one pass. Trained weights of another dtype are cast once, not
/// once for each image.
struct PassTower<'a> {
    own: Option<&'a VisionTower>,
    cast: Option<VisionTower>,
    dropout_seed: Option<u64>,
}

impl<'a> PassTower<'a> {
    fn of(decoder: &'a Decoder, dropout_seed: Option<u64>) -> Self {
        let own = decoder.vision.as_ref();
        Self { own, cast: own.and_then(VisionTower::cast), dropout_seed }
    }

    /// The features of an image with their graph. Dropout depends on seed, image and position.
    fn features(&self, image: &PromptImage) -> Tensor {
        let dropout = self.dropout_seed.map(|seed| Dropout { seed: seed ^ image.digest, first_token: 0 });
        let of_tower = |tower| Forward { tower, adapter: Adapter::On, dropout }.compute(image);
        let tower = self.cast.as_ref().or(self.own);
        Tensor::cat(&tower.into_iter().map(of_tower).collect::<Vec<_>>(), 0)
    }
}

impl TowerPass {
    /// Runs the backward pass of the tower. The gradient of the features has two parts: the gradient
    /// `grad_td`, [t, d], of the embedded tokens, some of which the features replaced, and the gradients of
    /// the layers to whose outputs features were added.
    pub fn backward(self, decoder: &Decoder, grad_td: Option<&Tensor>) {
        let Self { images, places_n, features, graphs, dropout_seed } = self;
        let added = features.grad();
        let grad = if added.defined() { added } else { features.detach().zeros_like() };
        if let Some(grad_td) = grad_td {
            let replaced_nd = grad_td.index_select(0, &places_n).to_kind(grad.kind());
            let _ = grad.narrow(1, 0, replaced_nd.size()[1]).g_add_(&replaced_nd);
        }
        let tower = if graphs.is_empty() { Some(PassTower::of(decoder, dropout_seed)) } else { None };
        let again = images.iter().flat_map(|image| tower.as_ref().map(|tower| tower.features(image)));
        let mut start = 0;
        for graph in graphs.into_iter().chain(again) {
            let len = graph.size()[0];
            backward(&graph, &grad.narrow(0, start, len));
            start += len;
        }
    }
}
