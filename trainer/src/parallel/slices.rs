//! Ranks that sample as one: each multiplies with a slice of every layer, and what they make is added up or
//! laid side by side here. What a slice is made of is `rollout::slices`; who samples and judges what is
//! `rlt_core::slice`.

use std::sync::{Arc, Mutex, PoisonError};

use rlt_core::mesh::Mesh;
use rlt_core::slice::Slice;
use rlt_torch::collectives::{Collectives, Pending, Reduction, StreamGroup};
use tch::Tensor;

use super::{RankError, Ranks};

/// The ranks that hold one copy of the rollout's weights together, of which this is one.
#[derive(Debug)]
pub struct SliceRanks {
    slice: Slice,
    group: Mutex<Box<dyn Collectives>>,
}

impl SliceRanks {
    /// The slice that this rank has.
    pub fn slice(&self) -> Slice {
        self.slice
    }

    /// Adds the contiguous tensors of all slices in place; all ranks get the same bits.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn sum(&self, tensor: &Tensor) -> Result<(), RankError> {
        self.exchange(|group| group.all_reduce(tensor, Reduction::Sum))
    }

    /// Lays what each slice has of every row, `[rows, n]`, side by side: `[rows, num_slices * n]`.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn side_by_side(&self, own: &Tensor) -> Result<Tensor, RankError> {
        let own = own.contiguous();
        let (num_rows, width) = (own.size()[0], own.size()[1]);
        let all = Tensor::empty([self.slice.num_slices as i64, num_rows, width], (own.kind(), own.device()));
        self.exchange(|group| group.all_gather(&all, &own))?;
        Ok(all.transpose(0, 1).reshape([num_rows, -1]))
    }

    /// The largest of all ranks' numbers at each place.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn largest<const N: usize>(&self, mut numbers: [i64; N]) -> Result<[i64; N], RankError> {
        let tensor = Tensor::from_slice(&numbers);
        self.exchange(|group| group.all_reduce(&tensor, Reduction::Max))?;
        tensor.copy_data(&mut numbers, N);
        Ok(numbers)
    }

    /// The same ranks for operations in the order of libtorch's current stream on GPU `device_idx`.
    ///
    /// # Errors
    /// [`RankError`] when GPUs cannot be connected.
    pub fn in_stream(&self, device_idx: usize) -> Result<StreamGroup, RankError> {
        Ok(self.group.lock().unwrap_or_else(PoisonError::into_inner).in_stream(device_idx)?)
    }

    fn exchange(
        &self,
        start: impl FnOnce(&mut dyn Collectives) -> Result<Pending, rlt_torch::collectives::CollectiveError>,
    ) -> Result<(), RankError> {
        let mut group = self.group.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(start(group.as_mut())?.wait()?)
    }
}

impl Ranks {
    /// Connects the `num_slices` neighbours that sample as one; `None` where every rank does so by itself.
    /// All ranks do so once.
    ///
    /// # Errors
    /// [`RankError`] when `num_slices` does not divide the ranks, or one is lost.
    pub fn slicing_rollout(&self, num_slices: usize) -> Result<Option<Arc<SliceRanks>>, RankError> {
        let mesh = Mesh::new(self.size, num_slices, 1)?;
        if num_slices == 1 {
            return Ok(None);
        }
        let place = mesh.coordinates(self.rank);
        let name = format!("rollout {} of {num_slices} slices", place.replica);
        let group = self.lock().connect(&name, &mesh.replica_members(self.rank))?;
        let slice = Slice { place: place.shard, num_slices };
        Ok(Some(Arc::new(SliceRanks { slice, group: Mutex::new(group) })))
    }
}
