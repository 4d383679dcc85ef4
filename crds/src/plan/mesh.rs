//! How the ranks of a job share its work, by the axes of a mesh.

use serde::Serialize;

use crate::spec::{MeshSpec, WorkersSpec};

/// How ranks share the work: the product of the axes is the number of ranks. Rank
/// `(r * dp_shard + d) * sp + s` has the places r, d and s along them, so that neighbours share tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Mesh {
    /// Copies of the sharded model, each with data of its own.
    pub dp_replicate: u32,
    /// Ranks over which parameters, gradients and optimizer are sharded, each with data of its own.
    pub dp_shard: u32,
    /// Ranks that share the tokens of one micro-batch and otherwise hold the same.
    pub sp: u32,
    /// Neighbours that compute the same tokens with different parts of every weight.
    pub tp: u32,
    /// Neighbours that have different experts, of the ranks that hold a copy of the model together.
    pub ep: u32,
    /// Neighbours that share the tokens of log-probs, along which axes ever.
    pub logprob_sp: u32,
    /// Neighbours that share the tokens of the reference's log-probs.
    pub reference_sp: u32,
    /// Neighbours that share the tokens of the critic.
    pub critic_sp: u32,
    /// Ranks of a rollout tensor-parallel group, which share one copy of the packed weights.
    pub rollout_tp: u32,
}

impl Mesh {
    /// The mesh of a valid job.
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

    /// The axes whose exchanges leave a worker of `ranks_per_worker` ranks, by their fields, with their
    /// degrees: those of every layer and token, which are slow across machines. Neighbours stay in one worker
    /// where the degree divides the number of its ranks.
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

    /// Number of ranks.
    pub fn world_size(&self) -> u32 {
        self.dp_replicate * self.dp_shard * self.sp * self.tp
    }
}
