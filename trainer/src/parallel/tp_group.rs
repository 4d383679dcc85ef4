//! Tensor-parallel groups of training and rollout: each rank multiplies with its shard of every layer, and
//! results are all-reduced or all-gathered here. Rows and columns of a shard are in `model::tp_shards`, the
//! assignment of prompts to ranks in `rlt_core::tensor_parallel`.

use std::sync::{Mutex, PoisonError};

use rlt_core::mesh::AxisPlace;
use rlt_torch::collectives::{CollectiveError, Collectives, Pending, Reduction, StreamGroup};
use tch::{Device, Kind, Tensor};

use super::RankError;

/// This rank's membership in a tensor-parallel group.
#[derive(Debug)]
pub struct TpGroup {
    place: AxisPlace,
    group: Mutex<Box<dyn Collectives>>,
}

impl TpGroup {
    pub(super) fn new(place: AxisPlace, group: Box<dyn Collectives>) -> Self {
        Self { place, group: Mutex::new(group) }
    }

    /// This rank's place in the group, which is also that of its shard of every layer.
    pub fn place(&self) -> AxisPlace {
        self.place
    }

    /// All-reduces a contiguous tensor in place; all ranks get the same bits.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn all_reduce(&self, tensor: &Tensor) -> Result<(), RankError> {
        self.exchange(|group| group.all_reduce(tensor, Reduction::Sum))
    }

    /// All-gathers every rank's columns, `[rows, n]`, side by side: `[rows, size * n]`.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn all_gather_columns(&self, own: &Tensor) -> Result<Tensor, RankError> {
        let own = own.contiguous();
        let (num_rows, width) = (own.size()[0], own.size()[1]);
        let all = Tensor::empty([self.place.size as i64, num_rows, width], (own.kind(), own.device()));
        self.exchange(|group| group.all_gather(&all, &own))?;
        Ok(all.transpose(0, 1).reshape([num_rows, -1]))
    }

    /// All-gathers values of every rank, `[n]`, to `[size, n]`.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn all_gather(&self, own: &Tensor) -> Result<Tensor, RankError> {
        let own = own.detach().contiguous().view(-1);
        let all = Tensor::empty([self.place.size as i64, own.numel() as i64], (own.kind(), own.device()));
        self.exchange(|group| group.all_gather(&all, &own))?;
        Ok(all)
    }

    /// All-gathers softmax statistics, `[4, n]`, of the ranks' vocabulary shards to `[size, 4, n]`.
    ///
    /// # Errors
    /// [`CollectiveError`] when a rank is lost.
    pub(crate) fn gather_statistics(&self, own: &Tensor) -> Result<Tensor, CollectiveError> {
        let own = own.contiguous();
        let size = [vec![self.place.size as i64], own.size()].concat();
        let all = Tensor::empty(size, (own.kind(), own.device()));
        let mut group = self.group.lock().unwrap_or_else(PoisonError::into_inner);
        group.all_gather(&all, &own)?.wait()?;
        Ok(all)
    }

    /// The sum of a number over the group, in the order of ranks: the same bits on every rank.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn sum(&self, number: f64) -> Result<f64, RankError> {
        let all = self.all_gather(&Tensor::from_slice(&[number]))?;
        Ok(rlt_torch::to_vec::<f64>(&all).iter().sum())
    }

    /// All-reduces numbers by their maximum, element by element.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn all_reduce_max<const N: usize>(&self, mut numbers: [i64; N]) -> Result<[i64; N], RankError> {
        let tensor = Tensor::from_slice(&numbers);
        self.exchange(|group| group.all_reduce(&tensor, Reduction::Max))?;
        tensor.copy_data(&mut numbers, N);
        Ok(numbers)
    }

    /// Broadcasts the bytes of the first rank; those of the others are not read. The number of bytes is
    /// exchanged first, and nothing else if it is 0.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub(crate) fn broadcast_bytes(&self, own: &[u8]) -> Result<Vec<u8>, RankError> {
        let own = if self.place.index == 0 { own } else { &[] };
        let [num_bytes] = self.all_reduce_max([own.len() as i64])?;
        if num_bytes == 0 {
            return Ok(Vec::new());
        }
        let bytes = match self.place.index {
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
        Ok(self.group.lock().unwrap_or_else(PoisonError::into_inner).in_stream(device_idx)?)
    }

    fn exchange(
        &self,
        start: impl FnOnce(&mut dyn Collectives) -> Result<Pending, CollectiveError>,
    ) -> Result<(), RankError> {
        let mut group = self.group.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(start(group.as_mut())?.wait()?)
    }
}
