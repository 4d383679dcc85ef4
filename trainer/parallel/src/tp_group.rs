//! Exchanges of tensor-parallel groups, in training and rollout: each rank multiplies with its shard of every
//! layer, and results are all-reduced or all-gathered. Rows and columns of a shard are in
//! `rlt_decoder`, the assignment of prompts to ranks in `rlt_core::tensor_parallel`.

use rlt_torch::collectives::{CollectiveError, StreamGroup};
use tch::{Device, Kind, Tensor};

use super::{AxisGroup, RankError};

impl AxisGroup {
    /// All-gathers every rank's columns, `[rows, n]`, side by side: `[rows, size * n]`.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn all_gather_columns(&self, own: &Tensor) -> Result<Tensor, RankError> {
        let own = own.contiguous();
        let (num_rows, width) = (own.size()[0], own.size()[1]);
        let all = Tensor::empty([self.place().size as i64, num_rows, width], (own.kind(), own.device()));
        self.exchange(|group| group.all_gather(&all, &own))?;
        Ok(all.transpose(0, 1).reshape([num_rows, -1]))
    }

    /// All-gathers softmax statistics, `[4, n]`, of the ranks' vocabulary shards to `[size, 4, n]`.
    ///
    /// # Errors
    /// [`CollectiveError`] when a rank is lost.
    pub fn gather_statistics(&self, own: &Tensor) -> Result<Tensor, CollectiveError> {
        let own = own.contiguous();
        let size = [vec![self.place().size as i64], own.size()].concat();
        let all = Tensor::empty(size, (own.kind(), own.device()));
        self.collectives().all_gather(&all, &own)?.wait()?;
        Ok(all)
    }

    /// Broadcasts the bytes of the first rank; those of the other ranks are not read. The number of bytes is
    /// exchanged first, and nothing else if it is 0.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn broadcast_bytes(&self, own: &[u8]) -> Result<Vec<u8>, RankError> {
        let own = if self.place().index == 0 { own } else { &[] };
        let [num_bytes] = self.all_reduce_max([own.len() as i64])?;
        if num_bytes == 0 {
            return Ok(Vec::new());
        }
        let bytes = match self.place().index {
            0 => Tensor::from_slice(own),
            _ => Tensor::zeros([num_bytes], (Kind::Uint8, Device::Cpu)),
        };
        self.exchange(|group| group.broadcast(&bytes, 0))?;
        let mut received = vec![0; num_bytes as usize];
        bytes.copy_data(&mut received, num_bytes as usize);
        Ok(received)
    }

    /// A group of the same ranks whose operations run in libtorch's current stream on GPU `device_idx`.
    ///
    /// # Errors
    /// [`RankError`] when GPUs cannot be connected.
    pub fn in_stream(&self, device_idx: usize) -> Result<StreamGroup, RankError> {
        Ok(self.collectives().in_stream(device_idx)?)
    }
}
