//! Prompts on a device: keys and values of many tokens in one pass, whose launches do not depend on how many
//! sequences they belong to; and copies of blocks.

use rlt_core::engine::{BlockCopy, Prefill, Step};
use rlt_torch::Error;
use rlt_torch::cuda::pinned;
use tch::{Kind, Tensor};

use super::layers::Inputs;
use super::{DeviceDecoder, Failure, STEPS_UNDER_WAY};

impl DeviceDecoder<'_> {
    /// Stores keys and values of a step's prompts, and copies its blocks.
    pub(in crate::rollout) fn prepare(&mut self, step: &Step) -> Result<(), Failure> {
        let _on_stream = self.stream.enter()?;
        for pass in step.prefill_passes() {
            let inputs = self.inputs_of(pass)?;
            let buffers = self.model.buffers(inputs.tokens.size()[0] as usize);
            self.model.run(&inputs, self.cache, &buffers)?;
        }
        Ok(self.copy_blocks(&step.copies)?)
    }

    /// The tokens of a pass, a row each, with the blocks of its sequence.
    fn inputs_of(&mut self, prefills: &[Prefill]) -> Result<Inputs, Error> {
        let max_blocks = self.layout.max_blocks;
        let num_rows: usize = prefills.iter().map(|prefill| prefill.tokens.len()).sum();
        let mut rows: [Vec<i32>; 5] = std::array::from_fn(|_| Vec::with_capacity(num_rows));
        let mut tables = vec![0; prefills.len() * max_blocks];
        for (idx, prefill) in prefills.iter().enumerate() {
            for (offset, (&token, &slot)) in prefill.tokens.iter().zip(&prefill.slots).enumerate() {
                let position = (prefill.first_position + offset) as i32;
                let row = [token as i32, position, slot as i32, position + 1, idx as i32];
                rows.iter_mut().zip(row).for_each(|(column, value)| column.push(value));
            }
            let table = &mut tables[idx * max_blocks..][..prefill.block_table.len()];
            table.iter_mut().zip(&prefill.block_table).for_each(|(to, &block)| *to = block as i32);
        }
        let words = [rows.concat(), tables].concat();
        let packed = self.send(&words)?;
        let column = |idx: usize| packed.narrow(0, (idx * num_rows) as i64, num_rows as i64);
        let tables = packed
            .narrow(0, (5 * num_rows) as i64, (prefills.len() * max_blocks) as i64)
            .view([prefills.len() as i64, max_blocks as i64]);
        Ok(Inputs {
            tokens: column(0),
            positions: column(1),
            slots: column(2),
            context_lens: column(3),
            block_tables: tables.index_select(0, &column(4)),
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

    /// Words on the device, by one copy that the host does not wait for.
    fn send(&mut self, words: &[i32]) -> Result<Tensor, Error> {
        let size = [words.len() as i64];
        let mut staged = pinned(&size, Kind::Int)?;
        rlt_torch::i32_slice_mut(&mut staged)?.copy_from_slice(words);
        let on_device = Tensor::empty(size, (Kind::Int, self.model.device()));
        self.stream.copy_to_device(&on_device, &staged)?;
        self.staged.push_back((self.num_steps, staged));
        // What went with a step that has been read has been copied.
        let num_read = self.num_steps.saturating_sub(STEPS_UNDER_WAY);
        while self.staged.front().is_some_and(|(step, _)| *step < num_read) {
            self.staged.pop_front();
        }
        Ok(on_device)
    }
}
