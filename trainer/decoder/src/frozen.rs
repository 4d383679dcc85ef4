//! Decoders with another decoder's weights: a frozen copy, the reference policy of a job that trains all
//! weights, the backbone of a critic, and the rollout engine's decoder.

use std::cell::OnceCell;
use std::path::Path;

use rlt_torch::TensorFile;
use tch::{Device, Kind, Tensor};

use super::decoder::{Decoder, SavedModules};
use super::experts::ExpertWeights;
use super::layer::DecoderLayer;
use super::parameters::{LoadOptions, meta};
use super::projection::{Adapter, Linear};
use super::vision::VisionTower;

impl Decoder {
    /// A copy of the weights without adapter and gradients, stored in the dtype `param_dtype`, whose passes
    /// compute in `compute`. Both may be equal for a copy that never changes, because each use rounds the
    /// weights to `compute` anyway. Later changes of this decoder do not affect the copy.
    pub fn frozen_copy(&self, param_dtype: Kind, compute: Kind) -> Self {
        self.frozen_as(
            param_dtype,
            compute,
            |weight| weight.detach().to_dtype(param_dtype, false, true),
            copied,
        )
    }

    /// A trainable copy of the weights without adapter and head, whose passes compute in `compute`: the body
    /// of a model with another head.
    pub fn trained_backbone(&self, compute: Kind) -> Self {
        let backbone = self.without_head(|weight| copied(weight).set_requires_grad(true), copied);
        backbone.computing_in(compute)
    }

    /// Makes [`Self::frozen_copy`] of meta tensors, see [`Self::meta`].
    pub fn frozen_meta(&self, param_dtype: Kind, compute: Kind) -> Self {
        let of = |weight: &Tensor| meta(&weight.size(), (param_dtype, weight.device()));
        self.frozen_as(param_dtype, compute, of, as_meta)
    }

    fn frozen_as(
        &self,
        param_dtype: Kind,
        compute: Kind,
        of: impl Fn(&Tensor) -> Tensor,
        of_quantized: fn(&Tensor) -> Tensor,
    ) -> Self {
        let options = LoadOptions { param_dtype, compute, trainable: false, ..self.options };
        let head = self.head.as_ref().map(&of);
        Self { head, ..self.without_head(of, of_quantized).with_options(options) }
    }

    /// Makes [`Self::trained_backbone`] of meta tensors, see [`Self::meta`], in the storage dtype. The dtype
    /// is not taken from the weights, because those of a sharded actor may be views in the compute dtype.
    pub fn backbone_meta(&self, compute: Kind) -> Self {
        let kinds = |weight: &Tensor| (self.options.param_dtype, weight.device());
        let of = |weight: &Tensor| meta(&weight.size(), kinds(weight)).set_requires_grad(true);
        self.without_head(of, as_meta).computing_in(compute)
    }

    fn computing_in(self, compute: Kind) -> Self {
        let options = LoadOptions { compute, ..self.options };
        self.with_options(options)
    }

    fn with_options(self, options: LoadOptions) -> Self {
        let vision = self.vision.map(|tower| tower.computing_in(options.compute));
        Self { options, vision, ..self }
    }

    /// A decoder without adapter and head that shares this decoder's weights, frozen: the body of a model
    /// with another head. The weights must not change as long as it is used; if they are sharded, they are
    /// unsharded for both.
    pub fn shared_backbone(&self) -> Self {
        self.without_head(
            |weight| if weight.requires_grad() { weight.detach() } else { weight.shallow_clone() },
            Tensor::shallow_clone,
        )
    }

    /// Creates a decoder with this configuration and the given embedding and final norm, without layers and
    /// head. It is for an engine that adds layers by [`DecoderLayer::without_projections`] and has its own
    /// products.
    pub fn unpacked(&self, embedding: Tensor, norm: Tensor) -> Self {
        Self {
            config: self.config.clone(),
            options: self.options,
            embedding,
            layers: Vec::new(),
            norm,
            head: None,
            head_bias: None,
            ropes: self.ropes.shallow_clone(),
            lora: None,
            saved: SavedModules::default(),
            vision: self.vision.as_ref().map(VisionTower::base),
            offload_file: None,
            token_shard: OnceCell::new(),
        }
    }

    /// Creates a decoder without adapter and head, whose weights `of` makes from this decoder's.
    /// `of_quantized` does so for the tensors of quantized weights, which keep their dtypes and stay frozen.
    fn without_head(&self, of: impl Fn(&Tensor) -> Tensor, of_quantized: fn(&Tensor) -> Tensor) -> Self {
        let layers = self.layers.iter().map(|layer| layer_of(layer, &of, of_quantized)).collect();
        let vision = self.vision.as_ref().map(|tower| tower.of_role(&of));
        Self { layers, vision, ..self.unpacked(of(&self.embedding), of(&self.norm)) }
    }

    /// Moves the weights of a frozen decoder on the CPU into an unlinked file of `folder` that is mapped into
    /// memory. After [`Self::release_pages`] they take none of the process's memory. On a GPU nothing
    /// happens.
    ///
    /// # Errors
    /// When the file cannot be written; the weights then stay where they are.
    pub fn move_to_file(&mut self, folder: &Path) -> Result<(), rlt_torch::Error> {
        if self.device() != Device::Cpu {
            return Ok(());
        }
        let mut weights = self.weights_mut();
        let resident: Vec<Tensor> = weights.iter().map(|weight| weight.shallow_clone()).collect();
        let (file, mapped) = TensorFile::write(folder, &resident)?;
        weights.iter_mut().zip(mapped).for_each(|(weight, mapped)| **weight = mapped);
        self.offload_file = Some(file);
        Ok(())
    }

    /// Releases the memory of weights in a file until they are read again.
    pub fn release_pages(&self) {
        if let Some(file) = &self.offload_file {
            file.release();
        }
    }

    fn weights_mut(&mut self) -> Vec<&mut Tensor> {
        let Self { embedding, layers, norm, head, vision, .. } = self;
        let mut weights: Vec<&mut Tensor> = [embedding, norm].into_iter().chain(head).collect();
        let tower = vision.iter_mut().filter(|tower| tower.is_own);
        weights.extend(tower.flat_map(VisionTower::tensors_mut));
        for layer in layers {
            weights.extend(layer.norms.iter_mut().map(|norm| &mut norm.weight));
            weights.extend(&mut layer.sinks);
            for projection in &mut layer.projections {
                weights.extend(projection.weight.tensors_mut());
                weights.extend(&mut projection.bias);
            }
            weights.extend(layer.experts.iter_mut().flat_map(ExpertWeights::parameters_mut));
        }
        weights
    }
}

impl DecoderLayer {
    /// Returns a layer without products. It has only copies by `of` of the sinks and of the norms, with or
    /// without those of the adapter.
    pub fn without_projections(&self, adapter: Adapter, of: impl Fn(&Tensor) -> Tensor) -> Self {
        Self {
            shape: self.shape.clone(),
            local_products: OnceCell::new(),
            norms: self.norms(adapter).map(&of),
            saved_norms: None,
            sinks: self.sinks.as_ref().map(of),
            projections: Vec::new(),
            experts: None,
        }
    }
}

fn layer_of(
    layer: &DecoderLayer,
    of: &impl Fn(&Tensor) -> Tensor,
    of_quantized: fn(&Tensor) -> Tensor,
) -> DecoderLayer {
    let projections = layer.projections.iter();
    let projections = projections.map(|projection| projection_of(projection, of, of_quantized)).collect();
    let experts = layer.experts.as_ref().map(|experts| experts.map(of));
    DecoderLayer { projections, experts, ..layer.without_projections(Adapter::Off, of) }
}

fn projection_of(
    projection: &Linear,
    of: &impl Fn(&Tensor) -> Tensor,
    of_quantized: fn(&Tensor) -> Tensor,
) -> Linear {
    Linear {
        name: projection.name.clone(),
        weight: projection.weight.map(of, of_quantized),
        bias: projection.bias.as_ref().map(of),
        lora: None,
        shard: OnceCell::new(),
    }
}

fn as_meta(tensor: &Tensor) -> Tensor {
    meta(&tensor.size(), (tensor.kind(), tensor.device()))
}

fn copied(tensor: &Tensor) -> Tensor {
    tensor.detach().copy()
}
