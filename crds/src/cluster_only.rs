//! Fields that have an effect only on a cluster: a local run reports each one that is set, instead of
//! ignoring it silently.

use serde_json::Value;

use crate::resolved::ResolvedSpec;
use crate::spec::{RunPolicySpec, WorkersSpec};

/// Fields of `spec.workers` and `spec.runPolicy` that have an effect everywhere.
const EVERYWHERE: [&str; 16] = [
    "spec.workers.count",
    "spec.workers.ranksPerWorker",
    "spec.workers.mesh.dpShard",
    "spec.workers.mesh.sp",
    "spec.workers.mesh.logprobSp",
    "spec.workers.mesh.referenceSp",
    "spec.workers.mesh.referenceDpShard",
    "spec.workers.mesh.criticDpShard",
    "spec.workers.mesh.rewardModelDpShard",
    "spec.workers.mesh.criticSp",
    "spec.workers.mesh.rolloutTp",
    "spec.workers.balance",
    "spec.workers.peerTimeoutSeconds",
    "spec.workers.device",
    "spec.workers.threads",
    "spec.runPolicy.activeDeadlineSeconds",
];
/// Fields that have an effect only if a process supervises the ranks: on a cluster, and in a local run with
/// several ranks.
const WITH_SEVERAL_RANKS: [&str; 5] = [
    "spec.runPolicy.terminationGracePeriodSeconds",
    "spec.runPolicy.retries.failure",
    "spec.runPolicy.retries.crash",
    "spec.runPolicy.retries.io",
    "spec.runPolicy.retries.checkpoint",
];

/// Returns the paths of the fields that are set and have an effect only on a cluster.
pub(crate) fn cluster_only_fields(spec: &ResolvedSpec) -> Vec<String> {
    let mut found = Vec::new();
    let value = |section: Result<Value, serde_json::Error>| section.unwrap_or_default();
    let workers = (serde_json::to_value(&spec.workers), serde_json::to_value(WorkersSpec::default()));
    collect("spec.workers", &value(workers.0), &value(workers.1), &mut found);
    let policy = (serde_json::to_value(&spec.run_policy), serde_json::to_value(RunPolicySpec::default()));
    collect("spec.runPolicy", &value(policy.0), &value(policy.1), &mut found);
    let acts_here = |path: &str| {
        EVERYWHERE.contains(&path) || spec.workers.num_ranks() > 1 && WITH_SEVERAL_RANKS.contains(&path)
    };
    found.retain(|path| !acts_here(path));
    found
}

fn collect(path: &str, given: &Value, default: &Value, found: &mut Vec<String>) {
    match given {
        _ if given == default => {}
        Value::Object(fields)
            if default.is_object() && !default.as_object().is_some_and(|map| map.is_empty()) =>
        {
            for (name, field) in fields {
                collect(&format!("{path}.{name}"), field, &default[name], found);
            }
        }
        _ => found.push(path.to_owned()),
    }
}
