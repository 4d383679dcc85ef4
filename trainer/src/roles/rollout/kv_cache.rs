//! Keys and values of the running sequences, in blocks: of all key heads, or of those of this rank's shard of
//! the model.
//!
//! Each layer has two tensors [num_blocks, block_size, kv_heads, head_dim]. They are not initialised: the
//! scheduler hands out no slot that is read before it was written, and on a CPU a block that was never used
//! takes no memory.

use rlt_api::plan::model_config::ModelConfig;
use rlt_core::engine::BlockCopy;
use tch::{Device, Kind, Tensor};

/// The caches of all layers.
#[derive(Debug)]
pub(super) struct KvCache {
    layers: Vec<LayerCache>,
    num_blocks: u32,
    block_size: usize,
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
        let shape =
            [i64::from(num_blocks), block_size as i64, config.num_kv_heads as i64, config.head_dim as i64];
        let empty = || Tensor::empty(shape, (kind, device));
        let layers = (0..config.num_layers).map(|_| LayerCache { keys: empty(), values: empty() }).collect();
        Self { layers, num_blocks, block_size }
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
        let layer_bytes = |layer: &LayerCache| 2 * layer.keys.numel() * layer.keys.kind().elt_size_in_bytes();
        self.layers.iter().map(layer_bytes).sum()
    }

    /// Duplicates blocks in every layer of a cache on a CPU; all sources are read before the first
    /// destination is written.
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

    /// The same of blocks whose numbers, i64, are where the cache is.
    pub(super) fn copy_blocks_of(&mut self, src: &Tensor, dst: &Tensor) {
        for layer in &mut self.layers {
            for cache in [&mut layer.keys, &mut layer.values] {
                let read = cache.index_select(0, src);
                let _ = cache.index_copy_(0, dst, &read);
            }
        }
    }
}

/// Bytes of one block over all layers.
pub(super) fn block_bytes(config: &ModelConfig, block_size: usize, kind: Kind) -> usize {
    2 * config.num_layers * block_size * config.num_kv_heads * config.head_dim * kind.elt_size_in_bytes()
}
