//! Weights of a role that a rank holds, and that it sends to other ranks: by the shards of FSDP, and with
//! expert parallelism by the ranks that hold the same experts.

use rlt_api::spec::MeshSpec;
use rlt_models::ModelConfig;

/// Layout of a role's weights over the ranks of one model copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sharing {
    dp_shard: f64,
    sp: f64,
    ep: f64,
    /// Number of weights of distributed experts; 0 without expert parallelism.
    experts: f64,
    trains_experts: bool,
}

/// Returns the fraction of a tensor that each of `ranks` ranks sends in an all-gather or reduce-scatter.
fn of_others(ranks: f64) -> f64 {
    (ranks - 1.0) / ranks
}

impl Sharing {
    /// Returns the layout of a role of which `dp_shard` ranks hold one copy.
    pub(super) fn new(mesh: &MeshSpec, dp_shard: f64, model: &ModelConfig, trains_experts: bool) -> Self {
        let experts = if mesh.ep > 1 { model.expert_weights().0 as f64 } else { 0.0 };
        Self { dp_shard, sp: mesh.sp.into(), ep: mesh.ep.into(), experts, trains_experts }
    }

    /// Number of ranks of a copy that hold the same experts.
    fn with_same_experts(&self) -> f64 {
        self.dp_shard * self.sp / self.ep
    }

    fn trained_experts(&self) -> f64 {
        if self.trains_experts { self.experts } else { 0.0 }
    }

    /// Number of elements that a rank sends so that `weights`, the number of all weights of the role, are
    /// gathered once for a pass.
    pub(super) fn sent(&self, weights: f64) -> f64 {
        let of_experts = self.experts / self.ep * of_others(self.with_same_experts());
        (weights - self.experts) * of_others(self.dp_shard) + of_experts
    }

    /// Number of parameters that a rank updates, if the role trains `trained` parameters.
    pub(super) fn updated_parameters(&self, trained: f64) -> f64 {
        let experts = self.trained_experts();
        (trained - experts) / self.dp_shard + experts / (self.dp_shard * self.sp)
    }

    /// Number of gradient elements that a rank sends so that all of `num_ranks` have the sums of `trained`
    /// parameters.
    pub(super) fn summed(&self, trained: f64, num_ranks: f64) -> f64 {
        let over = |numbers: f64, shards: f64, copies: f64| {
            numbers * of_others(shards) + 2.0 * numbers / shards * of_others(copies)
        };
        let experts = self.trained_experts();
        let copies = num_ranks / (self.dp_shard * self.sp);
        over(trained - experts, self.dp_shard, num_ranks / self.dp_shard)
            + over(experts / self.ep, self.with_same_experts(), copies)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_with_different_experts_send_no_weights_of_experts_in_a_pass() {
        let of = |dp_shard, sp, ep| Sharing { dp_shard, sp, ep, experts: 800.0, trains_experts: true };
        // 200 weights outside of the experts; each of the four ranks holds a quarter of the experts.
        let apart = of(4.0, 1.0, 4.0);
        assert_eq!(apart.sent(1000.0), 150.0);
        assert_eq!((apart.updated_parameters(1000.0), apart.summed(1000.0, 4.0)), (250.0, 150.0));
        // Eight ranks (`dp_shard` 4, `sp` 2), four of which hold the same half of the experts; two model
        // copies.
        let in_halves = of(4.0, 2.0, 2.0);
        assert_eq!(in_halves.sent(1000.0), 150.0 + 300.0);
        assert_eq!(in_halves.updated_parameters(1000.0), 50.0 + 100.0);
        assert_eq!(in_halves.summed(1000.0, 16.0), 150.0 + 2.0 * 50.0 * 0.75 + 300.0 + 2.0 * 100.0 * 0.5);
    }
}
