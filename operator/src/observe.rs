//! The observed state of a job, from memory alone: no call is made here.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt as _};
use kube::runtime::reflector::ObjectRef;
use rlt_objects::job::Job;
use rlt_objects::queue::{self, Queueing};
use rlt_objects::worker::{JobKey, Launcher, Worker, WorkerPhase};
use rlt_objects::worker_id::GroupName;

use crate::context::Context;
use crate::decide::Report;
use crate::index::Child;
use crate::nodes::NodeStates;
use crate::written::Current;

/// The observed state of a job.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The newest status.
    pub current: Current,
    /// Pods of the job, of all attempts.
    pub workers: Vec<Arc<Worker>>,
    /// States of the pods' nodes.
    pub nodes: NodeStates,
    /// Last report of the job's trainer; `None` without one.
    pub report: Option<Report>,
    /// Time that launchers have left to report to this operator; `None` once it is over.
    pub launchers_due: Option<Duration>,
    /// Whether the claim that the operator created for the job is being deleted.
    pub claim_is_deleting: bool,
    /// State of the job in its queue.
    pub queueing: Queueing,
}

/// A store of the trainers' reports.
pub trait Reports: Send + Sync + std::fmt::Debug {
    /// Returns the last report of a job's trainer.
    fn latest(&self, job: &JobKey) -> Option<Report>;

    /// Returns the report that a worker which has finished all steps left in the status of its pod.
    fn left_by(&self, _worker: &Worker) -> Option<Report> {
        None
    }

    /// Returns the stream of jobs to reconcile because of a report. Call it once.
    fn changes(&self) -> BoxStream<'static, ObjectRef<Job>> {
        stream::pending().boxed()
    }

    /// Returns the last reports of the launchers of a job's pods, by the UID of the pod.
    fn launchers(&self, _job: &JobKey) -> BTreeMap<Arc<str>, Launcher> {
        BTreeMap::new()
    }

    /// Returns the time that launchers have left to report to this operator after a change of the leader;
    /// `None` once it is over.
    fn launchers_due(&self) -> Option<Duration> {
        None
    }

    /// Tells the launchers of a job that no attempt follows.
    fn end_launchers(&self, _job: &JobKey) {}

    /// Drops the reports of a deleted job.
    fn forget(&self, _job: &JobKey) {}
}

/// A store without reports.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoReports;

impl Reports for NoReports {
    fn latest(&self, _: &JobKey) -> Option<Report> {
        None
    }
}

/// Collects the observed state of a job. `None` if the job must not be touched: it is being deleted, its
/// status cannot be read, not all of its objects have been listed, or another operator leads.
pub fn observe(context: &Context, job: &Job) -> Option<Observed> {
    let is_seen = context.index.namespaces.can_see(job.namespace());
    if job.metadata.deletion_timestamp.is_some() || !context.is_leader() || !is_seen {
        return None;
    }
    if let Err(error) = &job.status {
        tracing::error!(
            job = job.name(),
            error,
            "the status was written by another version; leaving it unchanged"
        );
    }
    let current = context.written.current(job)?;
    let key = job.key();
    let mut workers = context.index.workers(&key);
    let launchers = context.reports.launchers(&key);
    for worker in &mut workers {
        if let Some(launcher) = launchers.get(&worker.uid) {
            Arc::make_mut(worker).launcher = Some(Box::new(launcher.clone()));
        }
    }
    let (requested, workload) = (queue::asked_for(job), context.index.workload(&key));
    Some(Observed {
        current,
        nodes: context.index.nodes.of(&workers),
        report: last_report(&*context.reports, &key, &workers),
        workers,
        launchers_due: context.reports.launchers_due(),
        claim_is_deleting: context.index.is_deleting(&key, Child::Claim),
        queueing: Queueing {
            queue: queue::queue_of(requested, workload.as_deref()),
            requested: requested.map(str::to_owned),
            prebuilt: queue::prebuilt(job).map(str::to_owned),
            is_served: context.discovery.served().has_workloads,
            workload,
            wanted: None,
        },
    })
}

/// Returns the last report of a job's trainer: the one that its first worker left when it finished all steps,
/// else the one that was received last. The operator may be down, or unable to answer, when the worker ends.
fn last_report(reports: &dyn Reports, job: &JobKey, workers: &[Arc<Worker>]) -> Option<Report> {
    let received = reports.latest(job);
    let is_first = |worker: &&Arc<Worker>| {
        worker.idx == 0 && worker.group == GroupName::default() && worker.phase == WorkerPhase::Succeeded
    };
    let first = workers.iter().filter(is_first).max_by_key(|worker| worker.attempt);
    let Some(left) = first.and_then(|worker| reports.left_by(worker)) else { return received };
    let received = received.unwrap_or_default();
    if received.attempt > left.attempt {
        return Some(received);
    }
    let newest = |report: &Report| Some(report.checkpoints.as_ref()?.last()?.step);
    // The worker's termination message has room only for the newest checkpoints.
    let is_heard = newest(&left).is_some() && newest(&left) == newest(&received);
    let checkpoints = match received.checkpoints {
        received if is_heard => received,
        received => left.checkpoints_with(received.as_deref().unwrap_or_default()).or(received),
    };
    let commits = if left.commits.is_empty() { received.commits } else { left.commits };
    Some(Report { checkpoints, commits, ..left })
}
