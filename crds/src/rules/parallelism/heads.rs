//! Rules that degrees which shard attention divide the heads of a newly initialized model. The heads of other
//! models are checked once their files are read.

use super::{cel_is_one, feed_forward_width, given, heads};
use crate::degrees::{divides_heads, legal_degrees, tp_divides_layers};
use crate::rules::{Check, Rule};

/// Rule that a sequence-parallel degree divides the heads of a newly initialized model.
macro_rules! divides_heads {
    ($degree:literal, $given:expr) => {
        Rule {
            scope: "spec",
            at: concat!("workers.mesh.", $degree),
            reads: &[
                concat!("workers.mesh.", $degree),
                "model.architecture.numHeads",
                "model.architecture.numKvHeads",
            ],
            message: concat!(
                $degree,
                " must divide the model's numHeads, and divide or be a multiple of its numKvHeads"
            ),
            cel: || {
                let degree = concat!("self.workers.mesh.", $degree);
                let is_one = cel_is_one(degree, $given);
                format!("{is_one} || !has(self.model.architecture) || ({})", cel_divides_heads(degree))
            },
            holds: Check::Spec(|spec| {
                let given = given(spec, $given).zip(heads(spec));
                given.is_none_or(|(degree, heads)| divides_heads(degree, heads))
            }),
            allowed: Some(|spec| {
                let legal = |heads| legal_degrees(heads, |degree| divides_heads(degree, heads));
                heads(spec).map_or_else(String::new, legal)
            }),
        }
    };
}

pub(super) const RULES: &[Rule] = &[
    divides_heads!("sp", |mesh| Some(mesh.sp)),
    divides_heads!("logprobSp", |mesh| mesh.logprob_sp),
    divides_heads!("referenceSp", |mesh| mesh.reference_sp),
    divides_heads!("criticSp", |mesh| mesh.critic_sp),
    Rule {
        scope: "spec",
        at: "workers.mesh.rolloutTp",
        reads: &[
            "workers.mesh.rolloutTp",
            "model.architecture.numHeads",
            "model.architecture.numKvHeads",
            "model.architecture.intermediateSize",
        ],
        message: "rolloutTp must divide the model's numHeads and intermediateSize, and divide or be a multiple of \
                  its numKvHeads",
        cel: || {
            let tp = "self.workers.mesh.rolloutTp";
            let width = format!("self.model.architecture.intermediateSize % {tp} == 0");
            let is_whole = format!("{tp} == 1 || !has(self.model.architecture)");
            format!("{is_whole} || ({} && {width})", cel_divides_heads(tp))
        },
        holds: Check::Spec(|spec| {
            let sizes = heads(spec).zip(feed_forward_width(spec));
            sizes.is_none_or(|(heads, width)| tp_divides_layers(spec.workers.mesh.rollout_tp, heads, width))
        }),
        allowed: Some(|spec| {
            let legal = |(heads, width)| legal_degrees(heads, |tp| tp_divides_layers(tp, heads, width));
            heads(spec).zip(feed_forward_width(spec)).map_or_else(String::new, legal)
        }),
    },
];

/// CEL condition that `degree` divides the heads of a newly initialized model.
fn cel_divides_heads(degree: &str) -> String {
    let heads = "self.model.architecture.numHeads";
    let kv_heads = "self.model.architecture.numKvHeads";
    let kv_heads = format!("(has({kv_heads}) ? {kv_heads} : {heads})");
    format!("{heads} % {degree} == 0 && ({kv_heads} % {degree} == 0 || {degree} % {kv_heads} == 0)")
}
