//! Workers: how many, how their ranks are laid out, and what tells a process which rank it is.

use serde::Serialize;

use crate::spec::{Device, MeshSpec, WorkersSpec};

/// The port of the rendezvous store on the first worker.
pub const RENDEZVOUS_PORT: u16 = 29500;

/// How ranks share the work: the product of the axes is the number of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Mesh {
    /// Copies of the sharded model, each with data of its own.
    pub dp_replicate: u32,
    /// Ranks over which parameters, gradients and optimizer are sharded, each with data of its own.
    pub dp_shard: u32,
    /// Ranks that share the tokens of one micro-batch.
    pub sp: u32,
}

impl Mesh {
    /// The mesh of a valid job.
    pub(super) fn new(workers: &WorkersSpec) -> Self {
        let MeshSpec { dp_shard } = workers.mesh;
        Self { dp_replicate: workers.count / dp_shard, dp_shard, sp: 1 }
    }

    /// Number of ranks.
    pub fn world_size(&self) -> u32 {
        self.dp_replicate * self.dp_shard * self.sp
    }
}

/// Workers that are alike.
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
    pub(super) fn trainer(job: &str, mesh: &Mesh, device: Device) -> Self {
        Self {
            name: "trainer".into(),
            job: job.into(),
            num_workers: mesh.world_size(),
            ranks_per_worker: 1,
            device,
        }
    }

    /// Name of a worker, which is also its host name; workers count from 0.
    pub fn worker_name(&self, worker_idx: u32) -> String {
        format!("{}-{}-{worker_idx}", self.job, self.name)
    }

    /// Name of the service that gives the first worker an address.
    pub fn service_name(&self) -> String {
        format!("{}-{}", self.job, self.name)
    }

    /// What tells a process which rank it is, in the names that torch's own launcher uses.
    ///
    /// `None` when there is no such rank.
    pub fn environment(&self, rank: u32) -> Option<Vec<EnvironmentVariable>> {
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
