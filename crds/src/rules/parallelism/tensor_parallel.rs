//! Rules of tensor parallelism in training: the other degrees with which it can be combined, and conflicts
//! with parts of a model. Tensor parallelism of the rollout is in `heads`.

use super::{NUM_RANKS, feed_forward_width, given, given_default, heads};
use crate::conflicts::{TP_DORA, TP_QUANTIZED, TP_VISION};
use crate::degrees::{legal_degrees, tp_divides_weights};
use crate::rules::{Check, Rule, conflict, divisors};
use crate::spec::MeshSpec;

/// Rule that the product of a role's degrees and the tensor-parallel degree divides the number of ranks.
macro_rules! divides_beside_tp {
    ($degree:literal, $given:expr, $sp:expr) => {
        Rule {
            scope: "spec.workers",
            at: "mesh.tp",
            reads: &["mesh.tp", concat!("mesh.", $degree), "mesh.sp", "count", "ranksPerWorker"],
            message: if $sp {
                concat!(
                    $degree,
                    " * sp * tp must divide count * ranksPerWorker: as many ranks hold a copy of the role"
                )
            } else {
                concat!(
                    $degree,
                    " * tp must divide count * ranksPerWorker: as many ranks compute the same tokens"
                )
            },
            cel: || {
                let degree = concat!("self.mesh.", $degree);
                let sp = if $sp { " * self.mesh.sp" } else { "" };
                let is_default = given_default($given, degree);
                format!("self.mesh.tp == 1 || {is_default}{NUM_RANKS} % ({degree}{sp} * self.mesh.tp) == 0")
            },
            holds: Check::Spec(|spec| {
                let MeshSpec { tp, sp, .. } = spec.workers.mesh;
                let beside = tp * if $sp { sp } else { 1 };
                tp == 1
                    || given(spec, $given)
                        .is_none_or(|degree| spec.workers.num_ranks().is_multiple_of(degree * beside))
            }),
            allowed: Some(|spec| {
                let sp = if $sp { spec.workers.mesh.sp } else { 1 };
                divisors((spec.workers.num_ranks() / (given(spec, $given).unwrap_or(1) * sp).max(1)).max(1))
            }),
        }
    };
}

pub(super) const RULES: &[Rule] = &[
    divides_beside_tp!("dpShard", |mesh| Some(mesh.dp_shard), true),
    divides_beside_tp!("referenceDpShard", |mesh| mesh.reference_dp_shard, true),
    divides_beside_tp!("criticDpShard", |mesh| mesh.critic_dp_shard, true),
    divides_beside_tp!("logprobSp", |mesh| mesh.logprob_sp, false),
    divides_beside_tp!("referenceSp", |mesh| mesh.reference_sp, false),
    divides_beside_tp!("criticSp", |mesh| mesh.critic_sp, false),
    Rule {
        scope: "spec",
        at: "workers.mesh.tp",
        reads: &[
            "workers.mesh.tp",
            "model.architecture.numHeads",
            "model.architecture.numKvHeads",
            "model.architecture.intermediateSize",
        ],
        message: "tp must divide the model's numHeads, numKvHeads and intermediateSize",
        cel: || {
            let (tp, of_model) = ("self.workers.mesh.tp", "self.model.architecture");
            let kv_heads = format!("{of_model}.numKvHeads");
            format!(
                "{tp} == 1 || !has({of_model}) || ({of_model}.numHeads % {tp} == 0 && {of_model}.intermediateSize % {tp} == 0 && (!has({kv_heads}) || {kv_heads} % {tp} == 0))"
            )
        },
        holds: Check::Spec(|spec| {
            let sizes = heads(spec).zip(feed_forward_width(spec));
            sizes.is_none_or(|(heads, width)| tp_divides_weights(spec.workers.mesh.tp, heads, width))
        }),
        allowed: Some(|spec| {
            let legal = |(heads, width)| legal_degrees(heads, |tp| tp_divides_weights(tp, heads, width));
            heads(spec).zip(feed_forward_width(spec)).map_or_else(String::new, legal)
        }),
    },
    conflict(TP_VISION),
    conflict(TP_QUANTIZED),
    conflict(TP_DORA),
];
