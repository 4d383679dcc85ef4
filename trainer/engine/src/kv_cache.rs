//! Cache of the keys and values of running sequences, in blocks: of all key heads, or of those in this rank's
//! shard of the model.
//!
//! Each layer has two tensors [num_blocks, block_size, kv_heads, head_dim]. Latent attention has only one,
//! [num_blocks, block_size, 1, rank + width of rotated keys], whose first `rank` dims are the values. They
//! are not initialised: the scheduler assigns no slot that is read before it was written, and on a CPU a
//! block that was never used takes no memory.

use rlt_core::engine::BlockCopy;
use rlt_models::ModelConfig;
use tch::{Device, Kind, Tensor};

/// Caches of all layers.
#[derive(Debug)]
pub(super) struct KvCache {
    layers: Vec<LayerCache>,
    num_blocks: u32,
    block_size: usize,
    /// Whether keys and values of a layer are one tensor (latent attention).
    is_latent: bool,
}

/// Keys and values of one layer, each [num_blocks, block_size, kv_heads, head_dim].
#[derive(Debug)]
pub(super) struct LayerCache {
    pub(super) keys: Tensor,
    pub(super) values: Tensor,
}

impl KvCache {
    pub(super) fn allocate(
        config: &ModelConfig,
        num_blocks: u32,
        block_size: usize,
        (kind, device): (Kind, Device),
    ) -> Self {
        let heads = match &config.latent {
            None => [config.num_kv_heads, config.head_dim],
            Some(latent) => [1, latent.kv_cache_width()],
        };
        let shape = [i64::from(num_blocks), block_size as i64, heads[0] as i64, heads[1] as i64];
        let empty = || Tensor::empty(shape, (kind, device));
        let layer = |_| {
            let keys = empty();
            let values = if config.latent.is_some() { keys.shallow_clone() } else { empty() };
            LayerCache { keys, values }
        };
        let layers = (0..config.num_layers).map(layer).collect();
        Self { layers, num_blocks, block_size, is_latent: config.latent.is_some() }
    }

    pub(super) fn num_blocks(&self) -> u32 {
        self.num_blocks
    }

    pub(super) fn block_size(&self) -> usize {
        self.block_size
    }

    pub(super) fn layer(&mut self, layer_idx: usize) -> &mut LayerCache {
        &mut self.layers[layer_idx]
    }

    pub(super) fn bytes(&self) -> usize {
        let num_tensors = if self.is_latent { 1 } else { 2 };
        let layer_bytes =
            |layer: &LayerCache| num_tensors * layer.keys.numel() * layer.keys.kind().elt_size_in_bytes();
        self.layers.iter().map(layer_bytes).sum()
    }

    /// Copies blocks in every layer of a cache on a CPU. All sources are read before the first destination is
    /// written.
    pub(super) fn copy_blocks(&mut self, copies: &[BlockCopy]) {
        if copies.is_empty() {
            return;
        }
        let indices = |pick: fn(&BlockCopy) -> u32| {
            let picked: Vec<i64> = copies.iter().map(|copy| i64::from(pick(copy))).collect();
            Tensor::from_slice(&picked)
        };
        self.copy_blocks_of(&indices(|copy| copy.src), &indices(|copy| copy.dst));
    }

    /// Copies blocks whose indices, i64, are on the cache's device, see [`Self::copy_blocks`].
    pub(super) fn copy_blocks_of(&mut self, src: &Tensor, dst: &Tensor) {
        for layer in &mut self.layers {
            let values = Some(&mut layer.values).filter(|_| !self.is_latent);
            for cache in std::iter::once(&mut layer.keys).chain(values) {
                let read = cache.index_select(0, src);
                let _ = cache.index_copy_(0, dst, &read);
            }
        }
    }
}

/// Number of bytes of one block over all layers.
pub(super) fn block_bytes(config: &ModelConfig, block_size: usize, kind: Kind) -> usize {
    config.num_layers * block_size * config.cached_numbers() * kind.elt_size_in_bytes()
}
