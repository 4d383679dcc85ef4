//! A group whose tensors travel by NCCL where they are on a GPU and by Gloo where they are on the CPU. The
//! GPUs are connected with the first operation on one: all members come to it alike.

use std::net::IpAddr;
use std::sync::Arc;

use tch::{Device, Tensor};

use super::gloo::GlooGroup;
use super::nccl::NcclGroup;
use super::seat::Seat;
use super::store::Store;
use super::{CollectiveError, Collectives, Pending, Reduction, RendezvousError};

/// A group of ranks that exchange tensors on CPUs and GPUs.
#[derive(Debug)]
pub(super) struct GroupByDevice {
    cpu: GlooGroup,
    gpu: Option<NcclGroup>,
    /// Where GPUs find each other.
    store: Store,
    attempt: u64,
    seat: Arc<Seat>,
}

impl GroupByDevice {
    /// Connects to the other members over the interface that holds `address`.
    pub(super) fn join(
        store: &Store,
        attempt: u64,
        seat: Seat,
        address: IpAddr,
    ) -> Result<Self, RendezvousError> {
        let seat = Arc::new(seat);
        let cpu = GlooGroup::join(store, Arc::clone(&seat), address)?;
        Ok(Self { cpu, gpu: None, store: store.try_clone()?, attempt, seat })
    }

    /// The transport of tensors where `tensor` is.
    fn of(&mut self, tensor: &Tensor) -> Result<&mut dyn Collectives, CollectiveError> {
        let Device::Cuda(device_idx) = tensor.device() else { return Ok(&mut self.cpu) };
        let gpu = match &mut self.gpu {
            Some(gpu) => gpu,
            vacant => {
                let seat = Seat { name: format!("{} on GPUs", self.seat.name), ..(*self.seat).clone() };
                vacant.insert(NcclGroup::join(&self.store, self.attempt, Arc::new(seat), device_idx)?)
            }
        };
        Ok(gpu)
    }
}

impl Collectives for GroupByDevice {
    fn name(&self) -> &str {
        self.cpu.name()
    }

    fn rank(&self) -> usize {
        self.cpu.rank()
    }

    fn size(&self) -> usize {
        self.cpu.size()
    }

    fn all_reduce(&mut self, tensor: &Tensor, reduction: Reduction) -> Result<Pending, CollectiveError> {
        self.of(tensor)?.all_reduce(tensor, reduction)
    }

    fn reduce_scatter(&mut self, output: &Tensor, input: &Tensor) -> Result<Pending, CollectiveError> {
        self.of(input)?.reduce_scatter(output, input)
    }

    fn all_gather(&mut self, output: &Tensor, input: &Tensor) -> Result<Pending, CollectiveError> {
        self.of(input)?.all_gather(output, input)
    }

    fn all_to_all(
        &mut self,
        output: &Tensor,
        input: &Tensor,
        output_splits: &[i64],
        input_splits: &[i64],
    ) -> Result<Pending, CollectiveError> {
        self.of(input)?.all_to_all(output, input, output_splits, input_splits)
    }

    fn broadcast(&mut self, tensor: &Tensor, root: usize) -> Result<Pending, CollectiveError> {
        self.of(tensor)?.broadcast(tensor, root)
    }

    fn barrier(&mut self) -> Result<(), CollectiveError> {
        self.cpu.barrier()
    }
}
