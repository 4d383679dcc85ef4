//! The decoder's linear layers in the engine: fused and packed for few rows with merged adapters, or by
//! projections with unmerged adapters (`unmerged`).
//!
//! Queries, keys and values come from one product, gate and up from another, so a layer has four wider
//! products. Norms and embeddings are shared with the trainer if it is not sharded. With FSDP units are
//! gathered one after the other, each only while it is packed, and the engine has copies of embeddings, in
//! its compute dtype, and of norms. The packed weights are then the only full copy of the model. With tensor
//! parallelism they are a shard of it, which is taken from each unit after the adapter was merged.

use std::sync::Arc;

use rlt_core::types::TokenId;
use rlt_decoder::{Adapter, Decoder, DecoderLayer, FeedForward, ProjectionWeights, RouteLog, TpSharding};
use rlt_layout::AxisPlace;
use rlt_models::ModelConfig;
use rlt_parallel::{AxisGroup, DecoderUnits, DigestCache, FsdpUnit, RankError, WeightDigest, digest_of};
use rlt_torch::{PackedLinear, WeightArena};
use tch::{Device, Kind, Tensor};

use super::EngineError;
use super::experts::PackedExperts;
use super::latent::PackedLatent;
use super::padded_heads::PaddedHeads;
use super::product::{DeviceProduct, Product, ProductOptions, fused};
use super::tp_projections::TpProjections;
use super::unmerged;

/// Settings by which weights are packed.
#[derive(Clone, Debug)]
pub(super) struct PackOptions {
    /// Expected number of rows of a product.
    pub(super) rows_hint: i64,
    pub(super) kind: Kind,
    /// Tensor-parallel group of the rollout; `None` without one.
    pub(super) ranks: Option<Arc<AxisGroup>>,
    /// Whether adapters are merged.
    pub(super) merges: bool,
}

/// Packed weights of one policy version.
#[derive(Debug)]
pub(super) struct RolloutWeights {
    /// Decoder with embeddings and norms, but without products.
    pub(super) unpacked: Decoder,
    /// Configuration of the model with the widths of this rank's shard.
    pub(super) shard: ModelConfig,
    pub(super) head_layout: PaddedHeads,
    pub(super) layers: Vec<PackedLayer>,
    /// Head, [vocabulary, hidden], or this rank's shard of the rows, padded to the same length on each rank.
    head: PackedLinear,
    ranks: Option<Arc<AxisGroup>>,
    /// Whether the adapter is unmerged.
    pub(super) is_unmerged: bool,
    pub(super) digest: WeightDigest,
    pub(super) policy_version: u64,
}

/// Packed products of one layer.
#[derive(Debug)]
pub(super) struct PackedLayer {
    pub(super) qkv: Product,
    /// Widths of queries, keys and values in the output of `qkv`.
    pub(super) qkv_widths: [i64; 3],
    /// Packed weights of latent attention; `qkv` then computes latents.
    pub(super) latent: Option<PackedLatent>,
    pub(super) output: Product,
    pub(super) feed_forward: FeedForward<PackedBlock, PackedExperts>,
}

/// Packed products of a feed-forward block.
#[derive(Debug)]
pub(super) struct PackedBlock {
    pub(super) gate_up: Product,
    /// Width of gate and of up in the output of `gate_up`.
    pub(super) intermediate: i64,
    pub(super) down: Product,
}

impl RolloutWeights {
    /// Packs every linear layer of `policy`, one FSDP unit at a time: in full, or this rank's tensor-parallel
    /// shard.
    pub(super) fn pack(
        policy: DecoderUnits<'_>,
        policy_version: u64,
        pack_options: PackOptions,
        digest_cache: &mut DigestCache,
    ) -> Result<Self, EngineError> {
        let PackOptions { rows_hint, kind, ranks, merges } = pack_options;
        let decoder = policy.decoder();
        let is_unmerged = !merges && decoder.lora().is_some();
        let failed = |what: String| |source| EngineError::Tensor { what, source };
        if is_unmerged {
            unmerged::check(decoder).map_err(failed("the adapter".into()))?;
        }
        let digest = WeightDigest::with_cache(policy, digest_cache)?;
        let sharding =
            TpSharding::new(ranks.as_ref().map_or(AxisPlace::ALONE, |ranks| ranks.place()), &decoder.config);
        let dim_order = decoder.ropes.dim_order();
        let head_layout = PaddedHeads::on(decoder.device(), decoder.config.head_dim, dim_order);
        let shard = ModelConfig { head_dim: head_layout.padded_width, ..sharding.config() };
        let arena = WeightArena::new(packed_bytes(decoder.device(), kind, &shard))
            .map_err(failed("the packed weights".into()))?;
        let mut packer = Packer { policy, kind, sharding, head_layout, rows_hint, is_unmerged, arena };
        let (mut outer, mut layers) = (None, Vec::new());
        policy.visit(policy.dtype_to_sample(kind), |unit| {
            packer.verify_gathered(unit)?;
            if unit == FsdpUnit::Layer(0) && policy.shards().is_some() {
                // The gathered tensors of the root unit are freed by now, and layers are smaller.
                rlt_torch::release_free_memory();
            }
            match unit {
                FsdpUnit::Root => outer = Some(packer.outer().map_err(failed("the head".into()))?),
                FsdpUnit::Layer(layer_idx) => {
                    let layer = packer.layer(&decoder.layers()[layer_idx]);
                    layers.push(layer.map_err(failed(format!("layer {layer_idx}")))?);
                }
            }
            Ok::<(), EngineError>(())
        })?;
        let head_layout = packer.head_layout;
        let (mut unpacked, head) = outer.ok_or(EngineError::Asleep)?;
        let (norms, layers) = layers.into_iter().unzip();
        unpacked.layers = norms;
        Ok(Self { unpacked, shard, head_layout, layers, head, ranks, is_unmerged, digest, policy_version })
    }

    /// The products of a layer in the form that its forward pass takes; `routes` records the choices of its
    /// router.
    pub(super) fn projections<'a>(
        &'a self,
        layer_idx: usize,
        routes: Option<&'a RouteLog>,
    ) -> TpProjections<'a> {
        TpProjections { layer: &self.layers[layer_idx], ranks: self.ranks.as_deref(), routes }
    }

    /// Returns the tokens that are never sampled: image placeholders, which would have no image in a
    /// completion.
    pub(super) fn banned(&self) -> Vec<TokenId> {
        let vision = self.unpacked.config.vision.as_ref();
        vision.map_or_else(Vec::new, |vision| {
            [vision.image_token, vision.video_token, vision.vision_start_token, vision.vision_end_token]
                .into()
        })
    }

    /// Tensor-parallel group of the rollout, whose ranks hold the shards of the weights; `None` without one.
    pub(super) fn ranks(&self) -> Option<&AxisGroup> {
        self.ranks.as_deref()
    }

    pub(super) fn head(&self) -> &PackedLinear {
        &self.head
    }

    /// The packed products of a layer.
    pub(super) fn products(&self, layer_idx: usize) -> &PackedLayer {
        &self.layers[layer_idx]
    }

    /// Returns the largest value of `of` over the device products with unmerged adapters; `None` if it is 0,
    /// or if there are no such products.
    pub(super) fn largest_beside(&self, of: impl Fn(&DeviceProduct) -> usize) -> Option<usize> {
        let products = self.layers.iter().flat_map(|layer| {
            let block = match &layer.feed_forward {
                FeedForward::Dense(block) => Some([&block.gate_up, &block.down]),
                FeedForward::Experts { shared_expert, .. } => {
                    shared_expert.as_ref().map(|block| [&block.gate_up, &block.down])
                }
            };
            [&layer.qkv, &layer.output].into_iter().chain(block.into_iter().flatten())
        });
        products.filter_map(Product::as_on_device).map(of).max().filter(|largest| *largest > 0)
    }

    /// Logits of every token [b, v], from hidden states [b, d] after the final norm.
    pub(super) fn logits(&self, normed_bd: &Tensor) -> Result<Tensor, RankError> {
        let own = self.head.forward(normed_bd);
        let all = match &self.ranks {
            None => own,
            // The last ranks' shards may have padding rows, whose logits are cut off.
            Some(ranks) => {
                ranks.all_gather_columns(&own)?.narrow(1, 0, self.unpacked.config.vocab_size as i64)
            }
        };
        Ok(self.unpacked.capped(all))
    }

    /// Number of bytes of the packed weights.
    pub(super) fn num_bytes(&self) -> usize {
        let of_layer = |layer: &PackedLayer| {
            let latent = layer.latent.as_ref().map_or(0, PackedLatent::num_bytes);
            let attention = layer.qkv.num_bytes() + latent + layer.output.num_bytes();
            attention
                + match &layer.feed_forward {
                    FeedForward::Dense(block) => block.num_bytes(),
                    FeedForward::Experts { experts, shared_expert } => {
                        experts.num_bytes() + shared_expert.as_ref().map_or(0, PackedBlock::num_bytes)
                    }
                }
        };
        self.layers.iter().map(of_layer).sum::<usize>() + self.head.num_bytes()
    }
}

/// Packs one FSDP unit at a time while it is unsharded.
struct Packer<'a> {
    policy: DecoderUnits<'a>,
    kind: Kind,
    sharding: TpSharding<'a>,
    head_layout: PaddedHeads,
    rows_hint: i64,
    is_unmerged: bool,
    arena: WeightArena,
}

impl Packer<'_> {
    /// Verifies that the gathered values of a unit equal the ranks' shards, by their digests.
    fn verify_gathered(&self, unit: FsdpUnit) -> Result<(), EngineError> {
        let Some(shards) = self.policy.shards() else { return Ok(()) };
        let digest = |tensor: &_| digest_of(&unit_name(unit), tensor).map_err(EngineError::from);
        match shards.matches_shards(unit, digest)? {
            true => Ok(()),
            false => Err(EngineError::GatherMismatch { unit: unit_name(unit) }),
        }
    }

    /// Packs the root unit. Returns a decoder with embedding and final norm, and the packed head.
    fn outer(&mut self) -> Result<(Decoder, PackedLinear), rlt_torch::Error> {
        let (decoder, kind) = (self.policy.decoder(), self.kind);
        let embedding_vd = decoder.embedding_weight(Adapter::On);
        let norm_d = decoder.norm_weight(Adapter::On);
        let mut unpacked = match self.policy.shards() {
            None => decoder.unpacked(embedding_vd.detach(), norm_d.detach()),
            Some(_) => decoder.unpacked(cast(embedding_vd, kind), copied(norm_d)),
        };
        unpacked.options.compute = kind;
        let shares = self.policy.shards().is_none();
        let of = |_: &str, own: &Tensor| if shares { own.detach() } else { copied(own) };
        unpacked.vision = decoder.vision.as_ref().map(|tower| tower.snapshot(of));
        // In f32 on the CPU packing makes a copy. Otherwise the head keeps the tensor, so gathered memory is
        // copied.
        let is_kept_plain = kind != Kind::Float || decoder.device() != Device::Cpu;
        let rows_vd = self.sharding.head(decoder.head_weight(Adapter::On));
        let head_vd = match self.policy.shards() {
            Some(_) if is_kept_plain => cast(&rows_vd, kind),
            _ => rows_vd.to_kind(kind),
        };
        let head = PackedLinear::new(&head_vd, None, self.rows_hint, Some(&mut self.arena))?;
        Ok((unpacked, head))
    }

    /// Packs a layer: its norms, and its products.
    fn layer(&mut self, layer: &DecoderLayer) -> Result<(DecoderLayer, PackedLayer), rlt_torch::Error> {
        let norms = match self.policy.shards() {
            None => layer.without_projections(Adapter::On, Tensor::detach),
            Some(_) => layer.without_projections(Adapter::On, copied),
        };
        // The unit is resharded afterwards, so packed tensors must not alias its memory.
        let shares = self.policy.shards().is_none();
        if layer.is_quantized() || self.is_unmerged {
            let options = ProductOptions { kind: self.kind, shares, rows_hint: self.rows_hint };
            let (sharding, layout) = (&self.sharding, &self.head_layout);
            let packed = PackedLayer::of_projections(layer, sharding, layout, options, &mut self.arena)?;
            return Ok((norms, packed));
        }
        let weights = self.sharding.layer(layer.layer_idx(), layer.merged_projection_weights(Adapter::On));
        let weights = self.head_layout.layer(self.scaled(weights));
        let (kind, rows_hint, arena) = (self.kind, self.rows_hint, &mut self.arena);
        let experts = PackedExperts::pack(layer, &self.sharding, kind, shares, rows_hint, None, arena)?;
        let latent = match &self.policy.decoder().config.latent {
            None => None,
            Some(latent) => Some(PackedLatent::pack(layer, latent, &weights, kind, rows_hint, arena)?),
        };
        Ok((norms, PackedLayer::pack(&weights, latent, experts, kind, shares, rows_hint, arena)?))
    }
}

/// Indices of output and down among the products of a layer.
pub(super) const OUTPUT: usize = 3;
pub(super) const DOWN: usize = 6;

impl Packer<'_> {
    /// Multiplies output and down by the scale of the residual sum on a device, because kernels there add
    /// them unscaled.
    fn scaled(&self, mut weights: Vec<ProjectionWeights>) -> Vec<ProjectionWeights> {
        let scale = self.policy.decoder().config.residual_scale;
        if scale == 1.0 || !self.policy.decoder().device().is_cuda() {
            return weights;
        }
        for product in [OUTPUT, DOWN] {
            let ProjectionWeights { weight, bias } = &weights[product];
            let times = |tensor: &Tensor| tensor.to_kind(Kind::Float) * scale;
            weights[product] = ProjectionWeights { weight: times(weight), bias: bias.as_ref().map(times) };
        }
        weights
    }
}

pub(super) fn unit_name(unit: FsdpUnit) -> String {
    unit.layer_idx().map_or("what is outside of the layers".into(), |idx| format!("layer {idx}"))
}

fn copied(tensor: &Tensor) -> Tensor {
    tensor.detach().copy()
}

/// A copy in `kind`, even if the tensor has that dtype.
fn cast(tensor: &Tensor, kind: Kind) -> Tensor {
    if tensor.kind() == kind { copied(tensor) } else { tensor.detach().to_kind(kind) }
}

impl PackedLayer {
    /// Packs q, k, v, o and, if there is a feed-forward block, gate, up and down in `kind`. With `shares`, a
    /// weight that needs no packing and is alone in its product may be the model's tensor.
    fn pack(
        weights: &[ProjectionWeights],
        latent: Option<(PackedLatent, Vec<ProjectionWeights>)>,
        experts: Option<PackedExperts>,
        kind: Kind,
        shares: bool,
        rows_hint: i64,
        arena: &mut WeightArena,
    ) -> Result<Self, rlt_torch::Error> {
        let mut fuse = |parts: &[ProjectionWeights]| {
            let (weight, bias) = fused(parts, kind, shares);
            PackedLinear::new(&weight, bias.as_ref(), rows_hint, Some(arena)).map(Product::Packed)
        };
        let width = |unit: usize| weights[unit].weight.size()[0];
        let (latent, qkv, qkv_widths) = match latent {
            None => (None, fuse(&weights[..3])?, [width(0), width(1), width(2)]),
            Some((latent, of_hidden)) => {
                let [queries, keys] = [0, 1].map(|unit: usize| of_hidden[unit].weight.size()[0]);
                (Some(latent), fuse(&of_hidden)?, [queries, keys, 0])
            }
        };
        let output = fuse(&weights[3..4])?;
        let mut block = || -> Result<PackedBlock, rlt_torch::Error> {
            let gate_up = fuse(&weights[4..6])?;
            Ok(PackedBlock { gate_up, intermediate: width(4), down: fuse(&weights[6..])? })
        };
        Ok(Self {
            qkv,
            qkv_widths,
            latent,
            output,
            feed_forward: match (experts, weights.len() > 4) {
                (None, _) => FeedForward::Dense(block()?),
                (Some(experts), false) => FeedForward::Experts { experts, shared_expert: None },
                (Some(experts), true) => FeedForward::Experts { experts, shared_expert: Some(block()?) },
            },
        })
    }
}

impl PackedBlock {
    fn num_bytes(&self) -> usize {
        self.gate_up.num_bytes() + self.down.num_bytes()
    }
}

/// Number of bytes of the packed projections and head, the padding of each product's last panel included. It
/// is 0 unless the engine packs weights itself, which it does in f32 on the CPU.
fn packed_bytes(device: Device, kind: Kind, shard: &ModelConfig) -> usize {
    if kind != Kind::Float || device != Device::Cpu {
        return 0;
    }
    let of = |outputs: usize, inputs: usize| PackedLinear::packed_bytes(outputs as i64, inputs as i64);
    let of_experts = |layer_idx| {
        shard.experts_of(layer_idx).map_or(0, |experts| {
            let (width, hidden) = (experts.intermediate_size, shard.hidden_size);
            let of_each = of(2 * width, hidden) + of(hidden, width);
            of(experts.num_experts, hidden) + experts.num_experts * of_each
        })
    };
    let of_layer = |layer_idx| {
        if shard.quantized_in_layer(layer_idx).numbers > 0 {
            return 0;
        }
        let projections = shard.projections(layer_idx);
        let products = projections.iter().map(|shape| of(shape.out_features, shape.in_features));
        let latent = shard.latent.as_ref();
        let heads = latent.map_or(0, |latent| PackedLatent::packed_bytes(latent, shard.num_heads));
        products.sum::<usize>() + heads + of_experts(layer_idx)
    };
    (0..shard.num_layers).map(of_layer).sum::<usize>() + of(shard.vocab_size, shard.hidden_size)
}
