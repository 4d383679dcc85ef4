//! The rules of how ranks share the work. What a worker needs of its node is not judged here.

use super::{Check, Rule, divisors};
use crate::plan::{deals_out_heads, legal_degrees};
use crate::spec::{Device, RLTrainingJobSpec};

/// Query and key heads of a new model; those of others are known where their files are.
fn heads(spec: &RLTrainingJobSpec) -> Option<(u64, u64)> {
    let shape = spec.model.architecture.as_ref()?;
    Some((shape.num_heads.into(), shape.kv_heads().into()))
}

pub(super) const RULES: &[Rule] = &[
    Rule {
        scope: "spec.workers",
        at: "device",
        reads: &["count", "device"],
        message: "several workers exchange gradients between CPUs: device must be Cpu",
        cel: || "self.count == 1 || self.device == 'Cpu'".into(),
        holds: Check::Spec(|spec| spec.workers.count == 1 || spec.workers.device == Device::Cpu),
        allowed: Some(|_| "Cpu, or count 1".into()),
    },
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
        scope: "spec",
        at: "workers.mesh.sp",
        reads: &["workers.mesh.sp", "model.architecture.numHeads", "model.architecture.numKvHeads"],
        message: "sp must divide the model's numHeads, and divide or be a multiple of its numKvHeads",
        cel: || {
            let heads = "self.model.architecture.numHeads";
            let kv_heads = "self.model.architecture.numKvHeads";
            let kv_heads = format!("(has({kv_heads}) ? {kv_heads} : {heads})");
            let sp = "self.workers.mesh.sp";
            format!(
                "!has(self.model.architecture) || \
                 ({heads} % {sp} == 0 && ({kv_heads} % {sp} == 0 || {sp} % {kv_heads} == 0))"
            )
        },
        holds: Check::Spec(|spec| {
            heads(spec).is_none_or(|heads| deals_out_heads(spec.workers.mesh.sp, heads))
        }),
        allowed: Some(|spec| heads(spec).map_or_else(String::new, legal_degrees)),
    },
];
