//! Rules that degrees divide the number of ranks, which is bounded. Whether a degree fits the model is not
//! checked here.

use super::{NUM_RANKS, cel_is_one, given};
use crate::rules::{Check, Rule, divisors};

/// Largest number of ranks that is tested.
const MAX_RANKS: u32 = 1024;

/// Rule that a degree divides the number of ranks.
macro_rules! divides_num_ranks {
    ($degree:literal, $given:expr, $because:literal) => {
        Rule {
            scope: "spec.workers",
            at: concat!("mesh.", $degree),
            reads: &[concat!("mesh.", $degree), "count", "ranksPerWorker"],
            message: concat!($degree, " must divide count * ranksPerWorker: ", $because),
            cel: || {
                let degree = concat!("self.mesh.", $degree);
                format!("{} || {NUM_RANKS} % {degree} == 0", cel_is_one(degree, $given))
            },
            holds: Check::Spec(|spec| {
                given(spec, $given).is_none_or(|degree| spec.workers.num_ranks().is_multiple_of(degree))
            }),
            allowed: Some(|spec| divisors(spec.workers.num_ranks())),
        }
    };
}

/// Rule that the product of a role's FSDP degree and the sequence-parallel degree divides the number of
/// ranks.
macro_rules! divides_with_sp {
    ($degree:literal, $given:expr) => {
        Rule {
            scope: "spec.workers",
            at: concat!("mesh.", $degree),
            reads: &[concat!("mesh.", $degree), "mesh.sp", "count", "ranksPerWorker"],
            message: concat!(
                $degree,
                " * sp must divide count * ranksPerWorker: as many ranks hold a copy of the role"
            ),
            cel: || {
                let degree = concat!("self.mesh.", $degree);
                format!("!has({degree}) || {NUM_RANKS} % ({degree} * self.mesh.sp) == 0")
            },
            holds: Check::Spec(|spec| {
                let sp = spec.workers.mesh.sp;
                given(spec, $given).is_none_or(|degree| spec.workers.num_ranks().is_multiple_of(degree * sp))
            }),
            allowed: Some(|spec| divisors((spec.workers.num_ranks() / spec.workers.mesh.sp).max(1))),
        }
    };
}

/// Rules of the number of ranks, and of the actor's degrees.
pub(super) const RULES: &[Rule] = &[
    Rule {
        scope: "spec.workers",
        at: "ranksPerWorker",
        reads: &["count", "ranksPerWorker"],
        message: "count * ranksPerWorker must be at most 1024: so many ranks a job may have",
        cel: || format!("self.ranksPerWorker == 1 || {NUM_RANKS} <= {MAX_RANKS}"),
        holds: Check::Spec(|spec| spec.workers.num_ranks() <= MAX_RANKS),
        allowed: Some(|spec| format!("1 to {}", MAX_RANKS / spec.workers.count.max(1))),
    },
    divides_num_ranks!(
        "dpShard",
        |mesh| Some(mesh.dp_shard),
        "every copy of the model is held by as many ranks"
    ),
    Rule {
        scope: "spec.workers",
        at: "mesh.sp",
        reads: &["mesh.sp", "mesh.dpShard", "count", "ranksPerWorker"],
        message: "dpShard * sp must divide count * ranksPerWorker: every micro-batch is computed by sp ranks",
        cel: || format!("self.mesh.sp == 1 || {NUM_RANKS} % (self.mesh.dpShard * self.mesh.sp) == 0"),
        holds: Check::Spec(|spec| {
            let mesh = &spec.workers.mesh;
            mesh.sp == 1 || spec.workers.num_ranks().is_multiple_of(mesh.dp_shard * mesh.sp)
        }),
        allowed: Some(|spec| divisors((spec.workers.num_ranks() / spec.workers.mesh.dp_shard).max(1))),
    },
];

/// Rules of the degrees of other roles and passes.
pub(super) const OF_ROLES: &[Rule] = &[
    divides_num_ranks!(
        "logprobSp",
        |mesh| mesh.logprob_sp,
        "every pass for log-probs is computed by logprobSp ranks"
    ),
    divides_num_ranks!(
        "referenceSp",
        |mesh| mesh.reference_sp,
        "every pass for the reference's log-probs is computed by referenceSp ranks"
    ),
    divides_num_ranks!(
        "criticSp",
        |mesh| mesh.critic_sp,
        "every micro-batch of the critic is computed by criticSp ranks"
    ),
    divides_with_sp!("referenceDpShard", |mesh| mesh.reference_dp_shard),
    divides_with_sp!("criticDpShard", |mesh| mesh.critic_dp_shard),
    divides_with_sp!("rewardModelDpShard", |mesh| mesh.reward_model_dp_shard),
    divides_num_ranks!(
        "rolloutTp",
        |mesh| Some(mesh.rollout_tp),
        "every completion is sampled by rolloutTp ranks"
    ),
];
