//! Weights with an unmerged adapter (`spec.model.lora.merge: false`): how they are packed, and how a sync
//! transfers only the adapter.
//!
//! ```text
//! first sync    base: gathered, packed, kept until the engine ends      adapter: copied
//! sleep         the adapter is freed                                    y = x W^T + bias
//! next syncs    adapter: gathered, copied                                   + scaling (x A^T) B^T
//! ```
//! The base is kept as long as its digests do not change. `product` has the products and their arithmetic.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::ops::Range;

use rlt_api::conflicts::{ChosenDevice, Fact, conflict_of};
use rlt_decoder::{Decoder, DecoderLayer, FeedForward, Linear, NamedTensors, TpSharding, VisionTower};
use rlt_layout::{DimShards, LocalTensor};
use rlt_models::ProductRows;
use rlt_parallel::{DecoderUnits, DigestCache, FsdpUnit, WeightDigest, digest_of};
use rlt_torch::{Error, WeightArena};
use tch::Tensor;

use super::EngineError;
use super::experts::PackedExperts;
use super::padded_heads::PaddedHeads;
use super::product::{DeviceProduct, Product, ProductOptions};
use super::weights::{DOWN, OUTPUT, PackOptions, PackedBlock, PackedLayer, RolloutWeights, unit_name};

/// Checks that the decoder's adapter can be used unmerged.
pub(super) fn check(decoder: &Decoder) -> Result<(), Error> {
    let Some(lora) = decoder.lora() else { return Ok(()) };
    let is_on_cpu = decoder.device() == tch::Device::Cpu;
    let facts = decoder
        .config
        .facts()
        .on(if is_on_cpu { ChosenDevice::Cpu } else { ChosenDevice::Cuda })
        .with(Fact::Dora, lora.dora)
        .with(Fact::ExpertAdapters, !lora.target_parameters.is_empty())
        .with(Fact::ModulesToSave, !lora.modules_to_save.is_empty());
    match conflict_of(Fact::UnmergedAdapter, &facts) {
        None => Ok(()),
        Some(conflict) => Err(Error::Argument {
            act: "sampling with an unmerged adapter",
            expected: "spec.model.lora.merge: true".into(),
            got: conflict.part().into(),
        }),
    }
}

impl RolloutWeights {
    /// Frees the adapter, and keeps the base.
    pub(super) fn drop_adapter(&mut self) {
        self.unpacked.vision = self.unpacked.vision.as_ref().map(VisionTower::base);
        self.layers.iter_mut().flat_map(PackedLayer::products).for_each(Product::drop_adapter);
    }

    /// Replaces the adapter by that of `policy`, of version `policy_version`, on the same base. Also returns
    /// the number of bytes that were copied from the trainer. `None` if the base has changed. Collective if
    /// the policy is sharded.
    pub(super) fn with_adapter(
        mut self,
        policy: DecoderUnits<'_>,
        policy_version: u64,
        pack_options: &PackOptions,
        digest_cache: &mut DigestCache,
    ) -> Result<Option<(Self, usize)>, EngineError> {
        let digest = WeightDigest::with_cache(policy, digest_cache)?;
        if !has_base(policy, &digest, &self.digest)? {
            return Ok(None);
        }
        let options =
            ProductOptions { kind: pack_options.kind, shares: true, rows_hint: pack_options.rows_hint };
        let mut num_bytes = self.take_tower(policy)?;
        for (layer_idx, (packed, layer)) in self.layers.iter_mut().zip(policy.decoder().layers()).enumerate()
        {
            let what = || unit_name(FsdpUnit::Layer(layer_idx));
            let gather_mismatch = || EngineError::GatherMismatch { unit: what() };
            let gathered = match policy.shards() {
                None => None,
                Some(shards) => {
                    let unit = FsdpUnit::Layer(layer_idx);
                    let digest = |tensor: &_| digest_of(&what(), tensor).map_err(EngineError::from);
                    Some(shards.gather_verified(unit, digest)?.ok_or_else(gather_mismatch)?)
                }
            };
            let taken = packed.take_adapter(layer, gathered.as_ref(), options, &self.head_layout);
            num_bytes += taken.map_err(|source| EngineError::Tensor { what: what(), source })?;
        }
        (self.digest, self.policy_version) = (digest, policy_version);
        Ok(Some((self, num_bytes)))
    }
}

impl RolloutWeights {
    /// Copies the vision tower's adapter, if it has one, and returns the number of bytes copied from the
    /// trainer.
    fn take_tower(&mut self, policy: DecoderUnits<'_>) -> Result<usize, EngineError> {
        let Some(tower) = &policy.decoder().vision else { return Ok(0) };
        let unit = FsdpUnit::Root;
        let gathered = match policy.shards().filter(|_| tower.is_adapted()) {
            None => NamedTensors::new(),
            Some(shards) => {
                let digest = |tensor: &_| digest_of(&unit_name(unit), tensor).map_err(EngineError::from);
                let gather_mismatch = || EngineError::GatherMismatch { unit: unit_name(unit) };
                shards.gather_verified(unit, digest)?.ok_or_else(gather_mismatch)?
            }
        };
        let num_bytes = Cell::new(0);
        let of = |name: &str, own: &Tensor| match gathered.iter().find(|(gathered, _)| gathered == name) {
            None => own.detach(),
            Some((_, whole)) => {
                num_bytes.set(num_bytes.get() + whole.numel() * whole.kind().elt_size_in_bytes());
                whole.shallow_clone()
            }
        };
        self.unpacked.vision = Some(tower.snapshot(of));
        Ok(num_bytes.get())
    }
}

/// Whether the frozen weights of `policy` are unchanged, on all FSDP ranks.
fn has_base(
    policy: DecoderUnits<'_>,
    digest: &WeightDigest,
    packed: &WeightDigest,
) -> Result<bool, EngineError> {
    let trained = policy.decoder().trainable_parameters();
    let trained: BTreeSet<&str> = trained.iter().map(|(name, _)| name.as_str()).collect();
    let has_changed = !digest.equals_beside(packed, |name| trained.contains(name));
    match policy.shards() {
        None => Ok(!has_changed),
        Some(shards) => {
            let of_shards = shards.ranks().sum_over_shards(f64::from(u8::from(has_changed)))?;
            let of_all = shards.tensor_parallel().map_or(Ok(of_shards), |tp| tp.group.sum(of_shards))?;
            Ok(of_all == 0.0)
        }
    }
}

impl PackedLayer {
    /// Packs the projections of a layer, with unmerged adapters: in full, or this rank's shard by `sharding`.
    pub(super) fn of_projections(
        layer: &DecoderLayer,
        sharding: &TpSharding<'_>,
        layout: &PaddedHeads,
        options: ProductOptions,
        arena: &mut WeightArena,
    ) -> Result<Self, Error> {
        let parts = parts(layer, sharding);
        let is_on_device = layer.projections().iter().any(|own| own.weight.device().is_cuda());
        let width = |product: usize| {
            let (_, local) = &parts[product];
            let own = local.dims()[0].count();
            (if product < 3 { own / layout.width * layout.padded_width } else { own }) as i64
        };
        let mut of = |range: Range<usize>| {
            // Padding and reordering need the index of each product (q, k or v), so products are merged only
            // without them.
            let is_whole = sharding.is_whole() && layout.keeps_order();
            let projections = if is_whole {
                full_projections(&parts[range.clone()])
            } else {
                parts[range.clone()].to_vec()
            };
            if !is_on_device {
                return Product::of_projections(projections, sharding, options, arena);
            }
            let shards = range.clone().zip(projections).map(|(idx, (own, shard))| (idx, own, shard));
            let scale = if [OUTPUT, DOWN].contains(&range.start) { layer.residual_scale() } else { 1.0 };
            let product = DeviceProduct::new(shards.collect(), sharding, layout, options, scale)?;
            Ok(Product::OnDevice(product))
        };
        let (qkv, output) = (of(0..3)?, of(3..4)?);
        let mut shared_expert = || -> Result<PackedBlock, Error> {
            Ok(PackedBlock { gate_up: of(4..6)?, intermediate: width(4), down: of(6..7)? })
        };
        let shared_expert = if parts.len() > 4 { Some(shared_expert()?) } else { None };
        let gate = layer
            .shared_gate()
            .map(|gate| Product::of_projections(vec![(gate, whole_of(gate))], sharding, options, arena));
        let ProductOptions { kind, shares, rows_hint } = options;
        let experts =
            PackedExperts::pack(layer, sharding, kind, shares, rows_hint, gate.transpose()?, arena)?;
        let feed_forward = match (experts, shared_expert) {
            (Some(experts), shared_expert) => FeedForward::Experts { experts, shared_expert },
            (None, Some(block)) => FeedForward::Dense(block),
            (None, None) => return Err(no_block()),
        };
        let qkv_widths = [width(0), width(1), width(2)];
        let mut packed = Self { qkv, qkv_widths, latent: None, output, feed_forward };
        if is_on_device {
            packed.take_adapter(layer, None, options, layout)?;
        }
        Ok(packed)
    }

    /// The products that may have unmerged adapters.
    fn products(&mut self) -> impl Iterator<Item = &mut Product> {
        let (block, shared_gate) = match &mut self.feed_forward {
            FeedForward::Dense(block) => (Some(block), None),
            FeedForward::Experts { experts, shared_expert } => {
                (shared_expert.as_mut(), experts.shared_gate.as_mut())
            }
        };
        let block = block.into_iter().flat_map(|block| [&mut block.gate_up, &mut block.down]);
        [&mut self.qkv, &mut self.output].into_iter().chain(block).chain(shared_gate)
    }

    /// Copies the adapter of `layer`, whose matrices are in `gathered` if the policy is sharded. Returns the
    /// number of bytes copied from the trainer.
    fn take_adapter(
        &mut self,
        layer: &DecoderLayer,
        gathered: Option<&NamedTensors>,
        options: ProductOptions,
        layout: &PaddedHeads,
    ) -> Result<usize, Error> {
        let of_name = |name: &str| layer.projections().iter().find(|projection| projection.name == name);
        let mut products = self.products();
        products.try_fold(0, |num_bytes, own| {
            Ok(num_bytes + own.take_adapter(of_name, gathered, options, layout)?)
        })
    }
}

/// A projection with the indices of its weight [out, in] that a rank multiplies with.
type ShardOf<'a> = (&'a Linear, LocalTensor);

/// This rank's shards of q, k, v and o, and of gate, up and down if the layer has a feed-forward block.
fn parts<'a>(layer: &'a DecoderLayer, sharding: &TpSharding<'_>) -> Vec<ShardOf<'a>> {
    let parts = layer.products().iter().zip(sharding.products(layer.layer_idx()));
    let part = |(product, shards): (&ProductRows, DimShards)| {
        let projection = &layer.projections()[product.projection_idx];
        (projection, sharding.local(projection.weight.size(), product.rows.clone(), &shards))
    };
    parts.map(part).collect()
}

/// Merges products that together are all outputs of one projection.
fn full_projections<'a>(parts: &[ShardOf<'a>]) -> Vec<ShardOf<'a>> {
    let mut projections: Vec<&Linear> = parts.iter().map(|(projection, _)| *projection).collect();
    projections.dedup_by_key(|projection| projection.name.as_str());
    projections.into_iter().map(|projection| (projection, whole_of(projection))).collect()
}

fn whole_of(projection: &Linear) -> LocalTensor {
    LocalTensor::full(&projection.weight.size())
}

/// The error that a layer has neither a feed-forward block nor experts. Unreachable for a valid
/// configuration.
fn no_block() -> Error {
    Error::Argument {
        act: "packing a layer by its projections",
        expected: "the projections of a layer".into(),
        got: "one without a feed-forward block, or of another model".into(),
    }
}
