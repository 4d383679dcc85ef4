//! Ranks: processes that train one job together. Every rank runs the same step on the same batch and
//! computes its share of the sampling, scoring and gradients; results are gathered or all-reduced.
//!
//! ```text
//! prompts  -> every rank samples its share        -> all-gather: all ranks have all rollout groups
//! rows     -> every rank scores its share         -> all-reduce: all ranks have all log-probs
//! rows     -> gradients of every rank's share     -> all-reduce: all ranks apply the same update
//! ```
//! Advantages, controllers, data positions and decisions are computed from the same values on every rank and
//! need no communication. Each rank has a replica of the model or, with [`ShardedParameters`] (FSDP), a shard
//! of one. Ranks of a sequence-parallel group score and differentiate the same rows, each with a shard of the
//! tokens. Ranks of an expert-parallel group have different experts and send each other the hidden states of
//! their tokens. Ranks of a tensor-parallel group compute the same tokens with different shards of every
//! weight, or in the rollout sample the same prompts. All of these are [`AxisGroup`]s. [`schedule`] runs a
//! decoder's layers on these ranks, forward and backward. The transport of tensors is in
//! `rlt_torch::collectives`; `rlt-trainer launch` starts ranks.
//!
//! The first rank, the leader, writes the run folder. The exceptions are checkpoints, to which every rank
//! writes its shard, and unlinked files of offloaded tensors.

mod axis_group;
mod connection;
mod digest;
mod environment;
mod ep_group;
mod error;
mod groups;
mod layer;
mod mesh;
pub mod schedule;
mod shards;
mod sp_group;
mod tp_group;
mod units;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rlt_core::batch::Batch;
use rlt_core::partition::{Balance, shares, workload};
use rlt_layout::AxisPlace;
use rlt_torch::collectives::{Collectives, Membership, Reduction, Rendezvous, SingleProcessGroup, Traffic};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tch::{Device, Kind, Tensor};

pub use axis_group::AxisGroup;
use connection::Connection;
pub use digest::{DigestCache, DigestError, WeightDigest, digest_of};
pub use environment::RankEnvironment;
pub use error::RankError;
pub use layer::{
    Boundary, Exchange, ExpertDispatch, ExpertParallel, LayerPass, ParallelStyle, Styles, TensorParallel,
    Ulysses,
};
pub use mesh::ProcessGroups;
pub use shards::{FsdpUnit, ShardedParameters, WeightDtype, copy_tensor_run};
pub use units::DecoderUnits;

/// Maximum time that a rank waits for the other ranks to start: a cluster may need minutes to resolve their
/// names.
const JOIN_TIMEOUT: Duration = Duration::from_secs(300);

/// This rank's connection to the ranks that train with it. Clones share the process group, in which all ranks
/// must call the same operations in the same order.
#[derive(Clone, Debug)]
pub struct Ranks {
    /// Index of this rank among those with the same tensor-parallel index.
    rank: usize,
    /// Number of ranks with the same tensor-parallel index.
    size: usize,
    /// Index of this rank among all ranks of the job, and their number.
    world: AxisPlace,
    /// Number of ranks on this machine.
    local_size: usize,
    /// Balancing rule by which rows are assigned to ranks.
    balance: Balance,
    connection: Arc<Mutex<Connection>>,
    /// Sequence-parallel group; `None` if each rank has different tokens.
    sp_group: Option<Arc<AxisGroup>>,
    /// Expert-parallel degree: number of ranks over which the experts of a layer are distributed.
    ep: usize,
    /// Tensor-parallel group; `None` if each rank has full weights.
    tp_group: Option<Arc<AxisGroup>>,
    /// Ranks with the same tensor-parallel index; `None` without tensor parallelism, where these are all
    /// ranks.
    same_tp_index: Option<Arc<AxisGroup>>,
}

impl Ranks {
    /// Creates a single rank, which exchanges nothing.
    pub fn alone() -> Self {
        let connection = Connection { group: Box::new(SingleProcessGroup::new("all")), rendezvous: None };
        Self {
            rank: 0,
            size: 1,
            world: AxisPlace::ALONE,
            local_size: 1,
            balance: Balance::default(),
            connection: Arc::new(Mutex::new(connection)),
            sp_group: None,
            ep: 1,
            tp_group: None,
            same_tp_index: None,
        }
    }

    /// Joins the ranks that `environment` names; `peer_timeout` bounds every exchange.
    ///
    /// # Errors
    /// [`RankError::Rendezvous`], naming the ranks that did not join.
    pub fn join(environment: &RankEnvironment, peer_timeout: Duration) -> Result<Self, RankError> {
        if environment.world_size == 1 {
            return Ok(Self::alone());
        }
        let rendezvous = Rendezvous::join(Membership {
            host: environment.rendezvous_host().to_owned(),
            port: environment.master_port,
            rank: environment.rank,
            world_size: environment.world_size,
            attempt: environment.attempt,
            key: environment.key.clone(),
            join_timeout: JOIN_TIMEOUT,
            operation_timeout: peer_timeout,
        })?;
        let all: Vec<usize> = (0..environment.world_size).collect();
        let group =
            rendezvous.group("all", &all)?.unwrap_or_else(|| Box::new(SingleProcessGroup::new("all")));
        let connection = Connection { group, rendezvous: Some(rendezvous) };
        Ok(Self {
            rank: environment.rank,
            size: environment.world_size,
            world: AxisPlace { index: environment.rank, size: environment.world_size },
            local_size: environment.local_world_size,
            balance: Balance::default(),
            connection: Arc::new(Mutex::new(connection)),
            sp_group: None,
            ep: 1,
            tp_group: None,
            same_tp_index: None,
        })
    }

    /// Sets the rule by which rows are assigned to ranks; it must be the same on all ranks.
    pub fn balanced_by(self, balance: Balance) -> Self {
        Self { balance, ..self }
    }

    /// Index of this rank in its process group, from 0. The group contains the ranks with this rank's
    /// tensor-parallel index or, after [`Self::world`], all ranks.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of ranks of the process group, see [`Self::rank`].
    pub fn size(&self) -> usize {
        self.size
    }

    /// Whether this rank is the leader, which alone writes the run folder, the terminal and the trackers.
    pub fn is_leader(&self) -> bool {
        self.world.index == 0
    }

    /// Index of this rank on its machine, from 0.
    pub fn local_rank(&self) -> usize {
        // Ranks of a machine have consecutive numbers.
        self.world.index % self.local_size
    }

    /// Number of ranks on this machine.
    pub fn local_size(&self) -> usize {
        self.local_size
    }

    /// Bytes of tensors that this rank has sent and received so far.
    pub fn traffic(&self) -> Traffic {
        self.lock().rendezvous.as_ref().map_or_else(Traffic::default, Rendezvous::traffic)
    }

    /// Number of this machine's cores that this rank may use, at least one.
    pub fn cores(&self) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        (cores / self.local_size).max(1)
    }

    /// Returns the rows of `row_idxs` that are assigned to this rank's sequence-parallel group. A run of rows
    /// of one rollout group is assigned as a unit, unless there are fewer runs than sequence-parallel groups;
    /// then single rows are. The rule of [`Self::balanced_by`] balances the estimated work of a decoder with
    /// `hidden_size`. Every rank computes the same assignment. A single sequence-parallel group gets all
    /// rows, in order.
    pub fn share_of(&self, batch: &Batch, row_idxs: &[usize], hidden_size: usize) -> Vec<usize> {
        let sp = self.sp_place().size;
        let (num_sp_groups, sp_group) = (self.size / sp, self.rank / sp);
        if num_sp_groups == 1 {
            return row_idxs.to_vec();
        }
        let lens = batch.sequence_lens();
        let work = |rows: &[usize]| rows.iter().map(|row| workload(lens[*row], hidden_size)).sum::<u64>();
        let mut parts: Vec<&[usize]> = batch.group_runs(row_idxs).collect();
        if parts.len() < num_sp_groups {
            parts = row_idxs.chunks(1).collect();
        }
        let works: Vec<u64> = parts.iter().map(|rows| work(rows)).collect();
        let own = shares(&works, num_sp_groups, self.balance).swap_remove(sp_group);
        own.into_iter().flat_map(|part| parts[part]).copied().collect()
    }

    /// All-reduces vectors by element-wise sum; all ranks get the same bits.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn all_reduce(&self, vectors: &mut [&mut Vec<f64>]) -> Result<(), RankError> {
        if self.size == 1 {
            return Ok(());
        }
        let tensors: Vec<Tensor> = vectors.iter().map(|values| Tensor::from_slice(values)).collect();
        self.all_reduce_tensors(&tensors)?;
        for (values, tensor) in vectors.iter_mut().zip(&tensors) {
            let len = values.len();
            tensor.copy_data(values.as_mut_slice(), len);
        }
        Ok(())
    }

    /// All-reduces tensors in place by sum; all ranks get the same bits.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn all_reduce_tensors(&self, tensors: &[Tensor]) -> Result<(), RankError> {
        self.with_group(|group| {
            let started: Result<Vec<_>, _> =
                tensors.iter().map(|tensor| group.all_reduce(tensor, Reduction::Sum)).collect();
            started?.into_iter().try_for_each(|pending| pending.wait())
        })
    }

    /// All-reduces a number by its maximum.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn all_reduce_max(&self, number: i64) -> Result<i64, RankError> {
        let tensor = Tensor::from_slice(&[number]);
        self.with_group(|group| group.all_reduce(&tensor, Reduction::Max)?.wait())?;
        Ok(tensor.int64_value(&[0]))
    }

    /// All-gathers bytes, in the order of ranks. Each rank may have a different number of them: lengths are
    /// exchanged first, so that nothing is padded.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn all_gather_bytes(&self, own: &[u8]) -> Result<Vec<Vec<u8>>, RankError> {
        let lens = self.all_gather_equal(&Tensor::from_slice(&[own.len() as i64]))?;
        let lens = Vec::<i64>::try_from(&lens).unwrap_or_default();
        let of_ranks: Vec<Tensor> = lens
            .iter()
            .enumerate()
            .map(|(rank, len)| match rank == self.rank {
                true => Tensor::from_slice(own),
                false => Tensor::zeros([*len], (Kind::Uint8, Device::Cpu)),
            })
            .collect();
        self.with_group(|group| {
            let sent = of_ranks.iter().enumerate().filter(|(_, bytes)| bytes.numel() > 0);
            let started: Result<Vec<_>, _> = sent.map(|(rank, bytes)| group.broadcast(bytes, rank)).collect();
            started?.into_iter().try_for_each(|pending| pending.wait())
        })?;
        Ok(of_ranks.iter().map(|bytes| Vec::try_from(bytes).unwrap_or_default()).collect())
    }

    /// All-gathers a small value of every rank, as JSON, in the order of ranks.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn all_gather<T: Serialize + DeserializeOwned>(&self, own: T) -> Result<Vec<T>, RankError> {
        if self.size == 1 {
            return Ok(vec![own]);
        }
        let bytes = serde_json::to_vec(&own).map_err(RankError::Encode)?;
        let gathered = self.all_gather_bytes(&bytes)?;
        let values = gathered.iter().map(|bytes| serde_json::from_slice(bytes));
        values.collect::<Result<_, _>>().map_err(RankError::Decode)
    }

    /// Broadcasts the leader's value to all ranks of the job; the other ranks pass `None`.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn broadcast<T: Serialize + DeserializeOwned>(&self, own: Option<T>) -> Result<T, RankError> {
        // A list, because JSON cannot distinguish `None` from `Some(())`.
        let own: Vec<T> = own.into_iter().collect();
        self.world().all_gather(own)?.into_iter().flatten().next().ok_or(RankError::NothingFromLeader)
    }

    /// Runs `work` on the leader, then on the other ranks. A barrier in between lets them find what the
    /// leader created.
    ///
    /// # Errors
    /// The error of `work`, or [`RankError`] when a rank is lost.
    pub fn leader_first<T, E: From<RankError>>(&self, work: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let world = self.world();
        if self.is_leader() {
            let result = work()?;
            world.with_group(|group| group.barrier())?;
            return Ok(result);
        }
        world.with_group(|group| group.barrier())?;
        work()
    }

    /// Reports the error of this rank to the other ranks; returns the report of the first rank that failed.
    pub fn report_failure(&self, cause: &str) -> Option<String> {
        let connection = self.lock();
        connection.rendezvous.as_ref().and_then(|rendezvous| rendezvous.report_failure(cause).ok())
    }

    fn all_gather_equal(&self, own: &Tensor) -> Result<Tensor, RankError> {
        let output = Tensor::zeros([own.size()[0] * self.size as i64], (own.kind(), Device::Cpu));
        self.with_group(|group| group.all_gather(&output, own)?.wait())?;
        Ok(output)
    }

    fn with_group<T>(
        &self,
        act: impl FnOnce(&mut dyn Collectives) -> Result<T, rlt_torch::collectives::CollectiveError>,
    ) -> Result<T, RankError> {
        match &self.same_tp_index {
            Some(ranks) => Ok(act(ranks.collectives().as_mut())?),
            None => Ok(act(self.lock().group.as_mut())?),
        }
    }

    /// Connects this rank with the other `members`, which are indices among the ranks with its
    /// tensor-parallel index.
    fn connect(&self, name: &str, members: &[usize]) -> Result<Box<dyn Collectives>, RankError> {
        let Some(tp_group) = &self.tp_group else { return self.lock().connect(name, members) };
        let AxisPlace { index, size } = tp_group.place();
        let members: Vec<usize> = members.iter().map(|member| member * size + index).collect();
        self.lock().connect(&format!("tensor-parallel place {index} of {size}, {name}"), &members)
    }

    fn lock(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
