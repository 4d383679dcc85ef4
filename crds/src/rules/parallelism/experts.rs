//! Rules of expert parallelism: its degree divides the ranks of a model copy, and the experts of a layer.

use super::{given, given_default};
use crate::rules::{Check, Rule, divisors};
use crate::spec::{MeshSpec, RLTrainingJobSpec};

/// Rule that `ep` divides the ranks that hold a copy of a role.
macro_rules! holds_experts {
    ($degree:literal, $given:expr) => {
        Rule {
            scope: "spec.workers",
            at: "mesh.ep",
            reads: &["mesh.ep", concat!("mesh.", $degree), "mesh.sp"],
            message: concat!("ep must divide ", $degree, " * sp: as many ranks hold a copy of all experts"),
            cel: || {
                let degree = concat!("self.mesh.", $degree);
                let is_default = given_default($given, degree);
                format!("self.mesh.ep == 1 || {is_default}{degree} * self.mesh.sp % self.mesh.ep == 0")
            },
            holds: Check::Spec(|spec| {
                let MeshSpec { ep, sp, .. } = spec.workers.mesh;
                given(spec, $given).is_none_or(|degree| (degree * sp).is_multiple_of(ep.max(1)))
            }),
            allowed: Some(|spec| divisors(given(spec, $given).unwrap_or(1) * spec.workers.mesh.sp)),
        }
    };
}

/// Number of experts in a layer of a newly initialized model, 0 without experts; `None` for others, whose
/// files are read later.
fn num_experts(spec: &RLTrainingJobSpec) -> Option<u32> {
    spec.model.architecture.as_ref().map(|shape| shape.experts.map_or(0, |experts| experts.count))
}

pub(super) const RULES: &[Rule] = &[
    holds_experts!("dpShard", |mesh| Some(mesh.dp_shard)),
    holds_experts!("referenceDpShard", |mesh| mesh.reference_dp_shard),
    holds_experts!("criticDpShard", |mesh| mesh.critic_dp_shard),
    holds_experts!("rewardModelDpShard", |mesh| mesh.reward_model_dp_shard),
    Rule {
        scope: "spec",
        at: "workers.mesh.ep",
        reads: &["workers.mesh.ep", "model.architecture.experts.count"],
        message: "ep must divide the model's experts.count, and is 1 for a model without experts",
        cel: || {
            let of_model = "self.model.architecture";
            format!(
                "self.workers.mesh.ep == 1 || !has({of_model}) || (has({of_model}.experts) && \
                 {of_model}.experts.count % self.workers.mesh.ep == 0)"
            )
        },
        holds: Check::Spec(|spec| {
            let ep = spec.workers.mesh.ep.max(1);
            ep == 1 || num_experts(spec).is_none_or(|count| count > 0 && count.is_multiple_of(ep))
        }),
        allowed: Some(|spec| num_experts(spec).map_or_else(String::new, |count| divisors(count.max(1)))),
    },
];
