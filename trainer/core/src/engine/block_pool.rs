//! Block allocation of the paged key-value cache: a free list of block indices, and handles that return
//! themselves.
//!
//! A [`Block`] is a reference-counted handle: `clone` shares the block, the last drop returns it to the free
//! list. So no path through the scheduler, errors included, can leak a block or free it twice. Allocating and
//! freeing are O(1). The most recently freed block is allocated first, because its memory is the warmest.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Indices of the free blocks.
#[derive(Debug, Default)]
struct FreeList(Mutex<Vec<u32>>);

impl FreeList {
    fn lock(&self) -> MutexGuard<'_, Vec<u32>> {
        // A push or pop leaves the list intact, so a panic elsewhere cannot have broken it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All blocks of one cache.
#[derive(Debug)]
pub struct BlockPool {
    free: Arc<FreeList>,
    num_blocks: usize,
}

impl BlockPool {
    /// Makes a pool of `num_blocks` free blocks, allocated from index 0 upwards.
    pub fn new(num_blocks: u32) -> Self {
        let free = FreeList(Mutex::new((0..num_blocks).rev().collect()));
        Self { free: Arc::new(free), num_blocks: num_blocks as usize }
    }

    /// Allocates one block; `None` if none is free.
    pub fn allocate(&self) -> Option<Block> {
        let idx = self.free.lock().pop()?;
        Some(Block(Arc::new(Lease { idx, free: Arc::clone(&self.free) })))
    }

    /// Allocates `count` blocks; `None`, and nothing allocated, if fewer are free.
    pub fn allocate_many(&self, count: usize) -> Option<Vec<Block>> {
        (0..count).map(|_| self.allocate()).collect()
    }

    /// Number of blocks that are free.
    pub fn num_free(&self) -> usize {
        self.free.lock().len()
    }

    /// Number of blocks in total, free and allocated.
    pub fn num_blocks(&self) -> usize {
        self.num_blocks
    }
}

/// An allocated block. A clone shares it, and dropping the last clone frees it.
#[derive(Clone, Debug)]
pub struct Block(Arc<Lease>);

impl Block {
    /// Index of the block in the cache.
    pub fn idx(&self) -> u32 {
        self.0.idx
    }

    /// Whether another handle exists, so that the block must be copied before it is written.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

#[derive(Debug)]
struct Lease {
    idx: u32,
    free: Arc<FreeList>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.free.lock().push(self.idx);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_block_is_freed_by_its_last_holder() {
        let pool = BlockPool::new(2);
        let block = pool.allocate().unwrap();
        let sharer = block.clone();
        assert!(block.is_shared());
        drop(block);
        assert!(!sharer.is_shared());
        assert_eq!(pool.num_free(), 1);
        drop(sharer);
        assert_eq!(pool.num_free(), 2);
    }

    #[test]
    fn blocks_run_out_and_a_failed_request_for_many_takes_none() {
        let pool = BlockPool::new(3);
        let _held = pool.allocate().unwrap();
        assert!(pool.allocate_many(3).is_none());
        assert_eq!(pool.num_free(), 2);
        let mut idxs: Vec<u32> = pool.allocate_many(2).unwrap().iter().map(Block::idx).collect();
        idxs.sort_unstable();
        assert_eq!(idxs, [1, 2], "a held block is never handed out again");
    }
}
