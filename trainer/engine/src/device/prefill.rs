//! Prefill on a device, and copies of cache blocks. One pass computes the keys and values of many sequences,
//! with a number of launches that does not depend on the number of sequences.

use rlt_core::engine::{BlockCopy, Prefill, Step};
use rlt_torch::cuda::pinned;
use rlt_torch::{CachedSegments, Error};
use tch::{Kind, Tensor};

use super::layers::{AttentionInputs, ModelInput};
use super::{CudaError, CudaRunner, MAX_IN_FLIGHT};
use crate::images::TokenSpan;

impl CudaRunner<'_> {
    /// Stores keys and values of a step's prompts, and copies the step's blocks.
    pub(super) fn prepare(&mut self, step: &Step) -> Result<(), CudaError> {
        let _on_stream = self.stream.enter()?;
        for pass in step.prefill_passes() {
            let inputs = self.inputs_of(pass)?;
            let buffers = self.model.buffers(inputs.tokens.size()[0] as usize);
            self.model.run(&inputs, self.cache, &buffers)?;
        }
        Ok(self.copy_blocks(&step.copies)?)
    }

    /// Uploads the inputs of a pass in one copy: its tokens, one per row, and the slots of the cached tokens
    /// to which its sequences attend.
    fn inputs_of(&mut self, prefills: &[Prefill]) -> Result<ModelInput, Error> {
        let mut words = Words::of(prefills, self.layout.block_size);
        let spans: Vec<TokenSpan> = prefills.iter().map(token_span).collect();
        let axes = self.images.positions_by_axis(&spans);
        if let Some(axes) = &axes {
            words.positions = axes.iter().flatten().map(|position| *position as i32).collect();
        }
        let arrays = words.arrays();
        let packed = self.send(&arrays.concat())?;
        let mut start = 0;
        let [tokens, positions, slots, cu_queries, cu_keys, seen_slots] = arrays.map(|array| {
            let view = packed.narrow(0, start, array.len() as i64);
            start += array.len() as i64;
            view
        });
        let (max_queries, max_keys) = (words.max_queries, words.max_keys);
        let seen = CachedSegments { cu_queries, cu_keys, slots: seen_slots, max_queries, max_keys };
        let has_axes = axes.is_some();
        Ok(ModelInput {
            tokens,
            positions: if has_axes { positions.view([3, -1]) } else { positions },
            images: self.images.placed_features(&self.model.weights.unpacked, &spans),
            has_axes,
            slots,
            attention: AttentionInputs::Gathered(seen),
            routes: Vec::new(),
        })
    }

    fn copy_blocks(&mut self, copies: &[BlockCopy]) -> Result<(), Error> {
        if copies.is_empty() {
            return Ok(());
        }
        let blocks = |pick: fn(&BlockCopy) -> u32| copies.iter().map(move |copy| pick(copy) as i32);
        let words: Vec<i32> = blocks(|copy| copy.src).chain(blocks(|copy| copy.dst)).collect();
        // Indices of `index_copy_` are i64.
        let pairs = self.send(&words)?.to_kind(Kind::Int64).view([2, -1]);
        self.cache.copy_blocks_of(&pairs.select(0, 0), &pairs.select(0, 1));
        Ok(())
    }

    /// Uploads words by one copy, for which the host does not wait.
    fn send(&mut self, words: &[i32]) -> Result<Tensor, Error> {
        let size = [words.len() as i64];
        let mut staged = pinned(&size, Kind::Int)?;
        rlt_torch::i32_slice_mut(&mut staged)?.copy_from_slice(words);
        let on_device = Tensor::empty(size, (Kind::Int, self.model.device()));
        self.stream.copy_to_device(&on_device, &staged)?;
        self.staged.push_back((self.num_steps, staged));
        // Copies of a step that has been read are complete.
        let num_read = self.num_steps.saturating_sub(MAX_IN_FLIGHT);
        while self.staged.front().is_some_and(|(step, _)| *step < num_read) {
            self.staged.pop_front();
        }
        Ok(on_device)
    }
}

fn token_span(prefill: &Prefill) -> TokenSpan {
    let Prefill { request_idx, first_position, ref tokens, .. } = *prefill;
    TokenSpan { request_idx, first_position, len: tokens.len() }
}

/// Inputs of a pass as i32 words.
#[derive(Debug, Default, PartialEq, Eq)]
struct Words {
    tokens: Vec<i32>,
    positions: Vec<i32>,
    slots: Vec<i32>,
    /// First row of each sequence, and the number of all rows.
    cu_queries: Vec<i32>,
    /// First entry of each sequence in `seen_slots`, and the number of all entries.
    cu_keys: Vec<i32>,
    /// Slots of the cached tokens to which the sequences attend.
    seen_slots: Vec<i32>,
    max_queries: usize,
    max_keys: usize,
}

impl Words {
    fn of(prefills: &[Prefill], block_size: usize) -> Self {
        let mut words = Self { cu_queries: vec![0], cu_keys: vec![0], ..Self::default() };
        for prefill in prefills {
            let end = prefill.first_position + prefill.tokens.len();
            let slot = |position: usize| {
                prefill.block_table[position / block_size] as usize * block_size + position % block_size
            };
            words.tokens.extend(prefill.tokens.iter().map(|&token| token as i32));
            words.positions.extend((prefill.first_position..end).map(|position| position as i32));
            words.slots.extend(prefill.slots.iter().map(|&slot| slot as i32));
            words.seen_slots.extend((0..end).map(|position| slot(position) as i32));
            words.cu_queries.push(words.tokens.len() as i32);
            words.cu_keys.push(words.seen_slots.len() as i32);
            words.max_queries = words.max_queries.max(prefill.tokens.len());
            words.max_keys = words.max_keys.max(end);
        }
        words
    }

    fn arrays(&self) -> [&[i32]; 6] {
        [&self.tokens, &self.positions, &self.slots, &self.cu_queries, &self.cu_keys, &self.seen_slots]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefill_chunk_attends_to_the_cached_tokens_of_its_prompt_and_to_itself() {
        let whole = Prefill {
            request_idx: 0,
            first_position: 0,
            tokens: vec![7, 8, 9],
            slots: vec![4, 5, 6],
            block_table: vec![1],
        };
        let piece = Prefill {
            request_idx: 1,
            first_position: 3,
            tokens: vec![5, 6],
            slots: vec![11, 20],
            block_table: vec![2, 5],
        };
        let expected = Words {
            tokens: vec![7, 8, 9, 5, 6],
            positions: vec![0, 1, 2, 3, 4],
            slots: vec![4, 5, 6, 11, 20],
            cu_queries: vec![0, 3, 5],
            cu_keys: vec![0, 3, 8],
            seen_slots: vec![4, 5, 6, 8, 9, 10, 11, 20],
            max_queries: 3,
            max_keys: 5,
        };
        assert_eq!(Words::of(&[whole, piece], 4), expected);
    }
}
