//! A group that sends GPU tensors by NCCL and CPU tensors by Gloo. The first operation on a GPU tensor
//! creates the NCCL communicator; all members call the same operation, so all create it.

use std::net::IpAddr;
use std::sync::Arc;

use tch::{Device, Tensor};

use super::gloo::GlooGroup;
use super::member::GroupMember;
use super::nccl::NcclGroup;
use super::store::Store;
use super::{CollectiveError, Collectives, Pending, Reduction, RendezvousError, StreamGroup};

/// A group of ranks that exchange tensors on CPUs and GPUs.
#[derive(Debug)]
pub(super) struct GroupByDevice {
    cpu: GlooGroup,
    gpu: Option<NcclGroup>,
    /// Store in which the members exchange NCCL's unique id.
    store: Store,
    attempt: u64,
    member: Arc<GroupMember>,
}

impl GroupByDevice {
    /// Connects to the other members over the network interface that has `address`.
    pub(super) fn join(
        store: &Store,
        attempt: u64,
        member: GroupMember,
        address: IpAddr,
    ) -> Result<Self, RendezvousError> {
        let member = Arc::new(member);
        let cpu = GlooGroup::join(store, Arc::clone(&member), address)?;
        Ok(Self { cpu, gpu: None, store: store.try_clone()?, attempt, member })
    }

    /// Returns the transport for the device of `tensor`.
    fn of(&mut self, tensor: &Tensor) -> Result<&mut dyn Collectives, CollectiveError> {
        match tensor.device() {
            Device::Cuda(device_idx) => Ok(self.of_gpu(device_idx)?),
            _ => Ok(&mut self.cpu),
        }
    }

    fn of_gpu(&mut self, device_idx: usize) -> Result<&mut NcclGroup, CollectiveError> {
        match &mut self.gpu {
            Some(gpu) => Ok(gpu),
            vacant => {
                let member =
                    GroupMember { name: format!("{} on GPUs", self.member.name), ..(*self.member).clone() };
                Ok(vacant.insert(NcclGroup::join(&self.store, self.attempt, Arc::new(member), device_idx)?))
            }
        }
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

    fn in_stream(&mut self, device_idx: usize) -> Result<StreamGroup, CollectiveError> {
        self.of_gpu(device_idx)?.in_stream(device_idx)
    }

    fn barrier(&mut self) -> Result<(), CollectiveError> {
        self.cpu.barrier()
    }
}
