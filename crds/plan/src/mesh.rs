//! Device mesh of a job: how its ranks share the work, by axis.

use rlt_api::spec::{MeshSpec, WorkersSpec};
use serde::Serialize;

/// Degree of each parallelism axis; the product of the axes is the number of ranks. Without tensor
/// parallelism rank `(r * dp_shard + d) * sp + s` has the coordinates r, d and s, so ranks of a
/// sequence-parallel group are consecutive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Mesh {
    /// Number of replicas of the sharded model, each with its own data.
    pub dp_replicate: u32,
    /// FSDP degree: ranks over which parameters, gradients and optimizer state are sharded, each with its own
    /// data.
    pub dp_shard: u32,
    /// Sequence-parallel degree: ranks that share the tokens of one micro-batch.
    pub sp: u32,
    /// Tensor-parallel degree: ranks that compute the same tokens with different shards of every weight.
    pub tp: u32,
    /// Expert-parallel degree: ranks of one model copy that hold different experts.
    pub ep: u32,
    /// Sequence-parallel degree of log-prob passes, independent of the other axes.
    pub logprob_sp: u32,
    /// Sequence-parallel degree of the reference policy's log-prob passes.
    pub reference_sp: u32,
    /// Sequence-parallel degree of the critic's passes.
    pub critic_sp: u32,
    /// Rollout tensor-parallel degree: ranks that share one copy of the packed weights.
    pub rollout_tp: u32,
}

impl Mesh {
    /// Returns the mesh of a validated job.
    pub(super) fn new(workers: &WorkersSpec) -> Self {
        let MeshSpec { dp_shard, sp, tp, ep, rollout_tp, .. } = workers.mesh;
        Self {
            dp_replicate: workers.num_ranks() / (dp_shard * sp * tp),
            dp_shard,
            sp,
            tp,
            ep,
            logprob_sp: workers.mesh.sp_of_logprobs(),
            reference_sp: workers.mesh.sp_of_reference(),
            critic_sp: workers.mesh.sp_of_critic(),
            rollout_tp,
        }
    }

    /// Returns the axes whose groups span several workers of `ranks_per_worker` ranks, with their degrees.
    /// Only axes that communicate for every layer or token are listed, since these are slow across machines.
    /// A group stays within one worker if its degree divides the worker's number of ranks.
    pub fn across_workers(&self, ranks_per_worker: u32) -> Vec<(&'static str, u32)> {
        let axes = [
            ("mesh.sp", self.sp),
            ("mesh.ep", self.ep),
            ("mesh.logprobSp", self.logprob_sp),
            ("mesh.referenceSp", self.reference_sp),
            ("mesh.criticSp", self.critic_sp),
            ("mesh.tp", self.tp),
            ("mesh.rolloutTp", self.rollout_tp),
        ];
        axes.into_iter().filter(|(_, degree)| !ranks_per_worker.is_multiple_of(*degree)).collect()
    }

    /// Returns the number of ranks.
    pub fn world_size(&self) -> u32 {
        self.dp_replicate * self.dp_shard * self.sp * self.tp
    }
}
