//! The rules of how ranks share the work. What a worker needs of its node is not judged here.

use super::algorithm::{cel_estimator, estimator};
use super::{Check, Rule, divisors};
use crate::plan::{deals_out_heads, legal_degrees};
use crate::spec::{AdvantageEstimator, AlgorithmKind, RLTrainingJobSpec};

/// Query and key heads of a new model; those of others are known where their files are.
fn heads(spec: &RLTrainingJobSpec) -> Option<(u64, u64)> {
    let shape = spec.model.architecture.as_ref()?;
    Some((shape.num_heads.into(), shape.kv_heads().into()))
}

pub(super) const RULES: &[Rule] = &[
    Rule {
        scope: "spec.workers",
        at: "mesh.dpShard",
        reads: &["mesh.dpShard", "count"],
        message: "dpShard must divide count: every copy of the model is held by as many workers",
        cel: || "self.count % self.mesh.dpShard == 0".into(),
        holds: Check::Spec(|spec| spec.workers.count.is_multiple_of(spec.workers.mesh.dp_shard)),
        allowed: Some(|spec| divisors(spec.workers.count)),
    },
    Rule {
        scope: "spec.workers",
        at: "mesh.sp",
        reads: &["mesh.sp", "mesh.dpShard", "count"],
        message: "dpShard * sp must divide count: every micro-batch is computed by sp workers",
        cel: || "self.mesh.sp == 1 || self.count % (self.mesh.dpShard * self.mesh.sp) == 0".into(),
        holds: Check::Spec(|spec| {
            let mesh = &spec.workers.mesh;
            mesh.sp == 1 || spec.workers.count.is_multiple_of(mesh.dp_shard * mesh.sp)
        }),
        allowed: Some(|spec| divisors(spec.workers.count / spec.workers.mesh.dp_shard)),
    },
    Rule {
        scope: "spec.workers",
        at: "mesh.logprobSp",
        reads: &["mesh.logprobSp", "count"],
        message: "logprobSp must divide count: every pass for log-probs is computed by logprobSp workers",
        cel: || "!has(self.mesh.logprobSp) || self.count % self.mesh.logprobSp == 0".into(),
        holds: Check::Spec(|spec| divides_count(spec, spec.workers.mesh.logprob_sp)),
        allowed: Some(|spec| divisors(spec.workers.count)),
    },
    Rule {
        scope: "spec.workers",
        at: "mesh.criticSp",
        reads: &["mesh.criticSp", "count"],
        message: "criticSp must divide count: every micro-batch of the critic is computed by criticSp workers",
        cel: || "!has(self.mesh.criticSp) || self.count % self.mesh.criticSp == 0".into(),
        holds: Check::Spec(|spec| divides_count(spec, spec.workers.mesh.critic_sp)),
        allowed: Some(|spec| divisors(spec.workers.count)),
    },
    Rule {
        scope: "spec",
        at: "workers.mesh.logprobSp",
        reads: &["workers.mesh.logprobSp", "algorithm.kind"],
        message: "SFT computes no log-probs without gradients: remove logprobSp",
        cel: || "!has(self.workers.mesh.logprobSp) || self.algorithm.kind != 'SFT'".into(),
        holds: Check::Spec(|spec| {
            spec.workers.mesh.logprob_sp.is_none() || spec.algorithm.kind != AlgorithmKind::Sft
        }),
        allowed: None,
    },
    Rule {
        scope: "spec",
        at: "workers.mesh.criticSp",
        reads: &["workers.mesh.criticSp", "algorithm.advantage.estimator", "algorithm.kind"],
        message: "criticSp is used only by the estimator Gae, which PPO includes",
        cel: || format!("!has(self.workers.mesh.criticSp) || {} == 'Gae'", cel_estimator("self.algorithm")),
        holds: Check::Spec(|spec| {
            spec.workers.mesh.critic_sp.is_none() || estimator(spec) == AdvantageEstimator::Gae
        }),
        allowed: None,
    },
    Rule {
        scope: "spec",
        at: "workers.mesh.sp",
        reads: &["workers.mesh.sp", "model.architecture.numHeads", "model.architecture.numKvHeads"],
        message: "sp must divide the model's numHeads, and divide or be a multiple of its numKvHeads",
        cel: || {
            let sp = "self.workers.mesh.sp";
            format!("{sp} == 1 || {}", cel_deals_out_heads(sp))
        },
        holds: Check::Spec(|spec| deals_out(spec, Some(spec.workers.mesh.sp))),
        allowed: Some(|spec| heads(spec).map_or_else(String::new, legal_degrees)),
    },
    Rule {
        scope: "spec",
        at: "workers.mesh.logprobSp",
        reads: &["workers.mesh.logprobSp", "model.architecture.numHeads", "model.architecture.numKvHeads"],
        message: "logprobSp must divide the model's numHeads, and divide or be a multiple of its numKvHeads",
        cel: || {
            let sp = "self.workers.mesh.logprobSp";
            format!("!has({sp}) || {}", cel_deals_out_heads(sp))
        },
        holds: Check::Spec(|spec| deals_out(spec, spec.workers.mesh.logprob_sp)),
        allowed: Some(|spec| heads(spec).map_or_else(String::new, legal_degrees)),
    },
    Rule {
        scope: "spec",
        at: "workers.mesh.criticSp",
        reads: &["workers.mesh.criticSp", "model.architecture.numHeads", "model.architecture.numKvHeads"],
        message: "criticSp must divide the model's numHeads, and divide or be a multiple of its numKvHeads",
        cel: || {
            let sp = "self.workers.mesh.criticSp";
            format!("!has({sp}) || {}", cel_deals_out_heads(sp))
        },
        holds: Check::Spec(|spec| deals_out(spec, spec.workers.mesh.critic_sp)),
        allowed: Some(|spec| heads(spec).map_or_else(String::new, legal_degrees)),
    },
];

fn divides_count(spec: &RLTrainingJobSpec, degree: Option<u32>) -> bool {
    degree.is_none_or(|degree| spec.workers.count.is_multiple_of(degree))
}

fn deals_out(spec: &RLTrainingJobSpec, degree: Option<u32>) -> bool {
    degree.zip(heads(spec)).is_none_or(|(degree, heads)| deals_out_heads(degree, heads))
}

fn cel_deals_out_heads(sp: &str) -> String {
    let heads = "self.model.architecture.numHeads";
    let kv_heads = "self.model.architecture.numKvHeads";
    let kv_heads = format!("(has({kv_heads}) ? {kv_heads} : {heads})");
    format!(
        "!has(self.model.architecture) || \
         ({heads} % {sp} == 0 && ({kv_heads} % {sp} == 0 || {sp} % {kv_heads} == 0))"
    )
}
