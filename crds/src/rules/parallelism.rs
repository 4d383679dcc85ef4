//! The rules of how ranks share the work. What a worker needs of its node is not judged here.

use super::algorithm::{cel_estimator, estimator};
use super::{Check, Rule, divisors};
use crate::spec::{AdvantageEstimator, Device};

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
        scope: "spec",
        at: "workers.mesh.dpShard",
        reads: &["workers.mesh.dpShard", "algorithm.advantage.estimator", "algorithm.kind"],
        message: "a critic is held whole by every worker, as is the model that it begins as: Gae needs dpShard 1",
        cel: || format!("self.workers.mesh.dpShard == 1 || {} != 'Gae'", cel_estimator("self.algorithm")),
        holds: Check::Spec(|spec| {
            spec.workers.mesh.dp_shard == 1 || estimator(spec) != AdvantageEstimator::Gae
        }),
        allowed: Some(|_| "1".into()),
    },
];
