//! Groups of identical workers of a job, their names, and the environment variables that give a process its
//! rank.
//!
//! Only the group `trainer` has ranks. A second group with ranks would be another entry of the plan, with its
//! own Service, PodGroup, pod set, status and world of ranks. The group `spare` has no ranks and belongs to
//! no attempt.

use rlt_api::spec::{Device, WorkersSpec};
use serde::Serialize;

/// Port of the rendezvous store on the first worker.
pub const RENDEZVOUS_PORT: u16 = 29500;

/// Name of the group whose ranks train. Every job has it, as its first group.
pub const TRAINER_GROUP: &str = "trainer";
/// Name of the group of hot spares, which have no ranks until they replace a lost worker.
pub const SPARE_GROUP: &str = "spare";

/// A group of identical workers. The ranks of a group form one world; spares have no ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerGroup {
    /// Name of the group within the job.
    pub name: String,
    /// Name of the job, the prefix of its workers' names.
    #[serde(skip)]
    job: String,
    /// Number of workers.
    pub num_workers: u32,
    /// Ranks of one worker, one for each of its devices.
    pub ranks_per_worker: u32,
    /// The device of each rank.
    pub device: Device,
}

/// An environment variable of a rank's process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EnvironmentVariable {
    /// Name of the variable.
    pub name: &'static str,
    /// Value of the variable.
    pub value: String,
}

impl WorkerGroup {
    pub(super) fn trainer(job: &str, workers: &WorkersSpec, device: Device) -> Self {
        Self {
            name: TRAINER_GROUP.into(),
            job: job.into(),
            num_workers: workers.count,
            ranks_per_worker: workers.ranks_per_worker,
            device,
        }
    }

    /// Returns the group of spares, with the pods of the training group; `None` where the job asks for none.
    pub(super) fn spares(job: &str, workers: &WorkersSpec, device: Device) -> Option<Self> {
        let num_workers = workers.spares?;
        Some(Self { name: SPARE_GROUP.into(), num_workers, ..Self::trainer(job, workers, device) })
    }

    /// Whether the workers of the group are hot spares.
    pub fn is_spare(&self) -> bool {
        self.name == SPARE_GROUP
    }

    /// Returns the name of a worker, which is also its host name; worker indices start at 0.
    pub fn worker_name(&self, worker_idx: u32) -> String {
        format!("{}-{}-{worker_idx}", self.job, self.name)
    }

    /// Returns the name of the headless service that gives the first worker an address.
    pub fn service_name(&self) -> String {
        format!("{}-{}", self.job, self.name)
    }

    /// Returns the first rank of a worker.
    pub fn first_rank(&self, worker_idx: u32) -> u32 {
        worker_idx.saturating_mul(self.ranks_per_worker)
    }

    /// Returns the number of GPUs that a worker requests.
    pub fn gpus_per_worker(&self) -> u32 {
        if self.device == Device::Cuda { self.ranks_per_worker } else { 0 }
    }

    /// Returns the variables that give a process its rank, under the names of torchrun.
    ///
    /// `None` when there is no such rank.
    pub fn environment(&self, rank: u32) -> Option<Vec<EnvironmentVariable>> {
        if self.is_spare() {
            return None;
        }
        let world_size = self.num_workers * self.ranks_per_worker;
        let first = || format!("{}.{}", self.worker_name(0), self.service_name());
        let master = if self.num_workers == 1 { "localhost".into() } else { first() };
        let variables = [
            ("RANK", rank.to_string()),
            ("WORLD_SIZE", world_size.to_string()),
            ("LOCAL_RANK", rank.checked_rem(self.ranks_per_worker)?.to_string()),
            ("LOCAL_WORLD_SIZE", self.ranks_per_worker.to_string()),
            ("MASTER_ADDR", master),
            ("MASTER_PORT", RENDEZVOUS_PORT.to_string()),
        ];
        let variables = variables.map(|(name, value)| EnvironmentVariable { name, value });
        (rank < world_size).then(|| variables.into())
    }
}
