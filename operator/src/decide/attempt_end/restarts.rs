//! Restarts in place: a pod that runs all ranks restarts its processes itself, and the operator counts these
//! restarts against the same budgets as attempts.

use std::collections::BTreeMap;

use rlt_api::failure::{self, FailureCause, restarts_in};
use rlt_api::spec::RetriesSpec;
use rlt_api::status::RLTrainingJobStatus;
use rlt_objects::prepare::Prepared;

use super::super::Reconcile;
use super::failure_counts::refill_after_checkpoint;

/// Returns the retries that a pod of the job may use for restarts in place. `None` if the pod may not restart
/// its processes, because it does not run all ranks, it runs a single rank (which ends with its pod), or the
/// job has a failure policy.
pub fn retries_left(prepared: &Prepared, status: &RLTrainingJobStatus) -> Option<RetriesSpec> {
    let [group] = prepared.plan.worker_groups.as_slice() else { return None };
    let policy = &prepared.job.spec().run_policy;
    let has_all_ranks = group.num_workers == 1 && group.ranks_per_worker > 1;
    let may_restart = has_all_ranks && policy.failure_policy.is_none();
    may_restart.then(|| failure::retries_left(&policy.retries, &status.retries_used))
}

/// Counts the restarts in place that are not counted yet: from the attempt's report, and from the termination
/// message of its pod, which includes restarts that no report could deliver. A reconcile that begins an
/// attempt still sees the pods of the previous one, whose restarts are counted already.
pub(in crate::decide) fn count(reconcile: &mut Reconcile<'_>) {
    let attempt = reconcile.attempt();
    let report = reconcile.input.report.filter(|report| report.attempt == attempt);
    let mut restarts = report.map(|report| report.restarts.clone()).unwrap_or_default();
    let workers = reconcile.pods.present().filter(|worker| worker.attempt == attempt);
    for exit in workers.filter_map(|worker| worker.exit.as_ref()) {
        for (cause, count) in restarts_in(&exit.message) {
            raise(&mut restarts, cause, count);
        }
    }
    for (cause, count) in restarts {
        let known = reconcile.status.restarts_in_place.get(&cause).copied().unwrap_or(0);
        if count > known {
            refill_after_checkpoint(&mut reconcile.status);
            let new = count - known;
            let failures = reconcile.status.failures_by_cause.entry(cause).or_default();
            *failures = failures.saturating_add(new);
            let used = reconcile.status.retries_used.entry(cause).or_default();
            *used = used.saturating_add(new);
            reconcile.status.restarts_in_place.insert(cause, count);
        }
    }
}

fn raise(restarts: &mut BTreeMap<FailureCause, u32>, cause: FailureCause, count: u32) {
    let known = restarts.entry(cause).or_default();
    *known = count.max(*known);
}
