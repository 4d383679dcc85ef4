//! Workers of a job: the groups that are alike, their names, and the variables that give a process its rank.

use serde::Serialize;

use crate::spec::{Device, WorkersSpec};

/// The port of the rendezvous store on the first worker.
pub const RENDEZVOUS_PORT: u16 = 29500;

/// The name of the group whose ranks train, which every job has and which is the first.
pub const TRAINER_GROUP: &str = "trainer";
/// The name of the group of hot spares, which have no ranks until they take those of a lost worker.
pub const SPARE_GROUP: &str = "spare";

/// Workers that are alike. The ranks of a group are a world of their own; spares have none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerGroup {
    /// Its name within the job.
    pub name: String,
    /// Name of the job, which names its workers.
    #[serde(skip)]
    job: String,
    /// Number of workers.
    pub num_workers: u32,
    /// Ranks of one worker, one for each of its devices.
    pub ranks_per_worker: u32,
    /// The device of each rank.
    pub device: Device,
}

/// A variable in a rank's environment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EnvironmentVariable {
    /// Its name.
    pub name: &'static str,
    /// Its value.
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

    /// Pods like those of the training group that wait; `None` where the job asks for none.
    pub(super) fn spares(job: &str, workers: &WorkersSpec, device: Device) -> Option<Self> {
        let num_workers = workers.spares?;
        Some(Self { name: SPARE_GROUP.into(), num_workers, ..Self::trainer(job, workers, device) })
    }

    /// Whether its workers wait for the ranks of others.
    pub fn is_spare(&self) -> bool {
        self.name == SPARE_GROUP
    }

    /// Name of a worker, which is also its host name; workers count from 0.
    pub fn worker_name(&self, worker_idx: u32) -> String {
        format!("{}-{}-{worker_idx}", self.job, self.name)
    }

    /// Name of the service that gives the first worker an address.
    pub fn service_name(&self) -> String {
        format!("{}-{}", self.job, self.name)
    }

    /// The first rank of a worker.
    pub fn first_rank(&self, worker_idx: u32) -> u32 {
        worker_idx.saturating_mul(self.ranks_per_worker)
    }

    /// GPUs that a worker asks the cluster for.
    pub fn gpus_per_worker(&self) -> u32 {
        if self.device == Device::Cuda { self.ranks_per_worker } else { 0 }
    }

    /// The variables that give a process its rank, under the names of torchrun.
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
