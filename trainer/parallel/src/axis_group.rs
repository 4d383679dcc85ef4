//! Process groups along mesh axes, and their collectives. `rlt_layout` has the layout of ranks, and `layer`
//! the exchanges inside a decoder layer.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rlt_layout::AxisPlace;
use rlt_torch::collectives::{CollectiveError, Collectives, Pending, Reduction};
use tch::Tensor;

use super::RankError;

/// Process group of the ranks whose mesh coordinates differ from this rank's only along the group's axes.
#[derive(Debug)]
pub struct AxisGroup {
    place: AxisPlace,
    collectives: Mutex<Box<dyn Collectives>>,
}

impl AxisGroup {
    pub(super) fn new(place: AxisPlace, collectives: Box<dyn Collectives>) -> Self {
        Self { place, collectives: Mutex::new(collectives) }
    }

    /// Returns this rank's index in the group, and the group's size. The index is also that of the rank's
    /// shard along the axes.
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

    /// All-reduces integers to their element-wise maximum.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn all_reduce_max<const N: usize>(&self, mut numbers: [i64; N]) -> Result<[i64; N], RankError> {
        let tensor = Tensor::from_slice(&numbers);
        self.exchange(|group| group.all_reduce(&tensor, Reduction::Max))?;
        tensor.copy_data(&mut numbers, N);
        Ok(numbers)
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

    /// All-to-all: sends the next `sent[r]` of the `rows`, `[n, ..]`, to rank `r` of the group, and returns
    /// the `received[r]` rows from each rank, in the order of ranks.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn all_to_all(&self, rows: &Tensor, sent: &[i64], received: &[i64]) -> Result<Tensor, RankError> {
        let rows = rows.detach().contiguous();
        let mut size = rows.size();
        size[0] = received.iter().sum();
        let output = Tensor::empty(size, (rows.kind(), rows.device()));
        self.exchange(|group| group.all_to_all(&output, &rows, received, sent))?;
        Ok(output)
    }

    /// Returns the sum of `number` over the group. Values are added in the order of ranks, so every rank gets
    /// the same bits.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn sum(&self, number: f64) -> Result<f64, RankError> {
        let all = self.all_gather(&Tensor::from_slice(&[number]))?;
        Ok(rlt_torch::to_vec::<f64>(&all).iter().sum())
    }

    /// Starts an operation, and waits for it.
    pub(super) fn exchange(
        &self,
        start: impl FnOnce(&mut dyn Collectives) -> Result<Pending, CollectiveError>,
    ) -> Result<(), RankError> {
        Ok(start(self.collectives().as_mut())?.wait()?)
    }

    /// Returns the collectives of the group, for a caller that overlaps several operations.
    pub(super) fn collectives(&self) -> MutexGuard<'_, Box<dyn Collectives>> {
        self.collectives.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
