//! Reports as the status shows them: times as text, only finite numbers, shares instead of seconds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt};
use jiff::Timestamp;
use kube::runtime::reflector::ObjectRef;
use rlt_api::status::{CheckpointStatus, CommitStatus, Progress};
use rlt_api::{FailureCause, Reason};
use rlt_channel::limits::MAX_WHOLE;
use rlt_channel::{self as channel, Stage, TimeSpent};
use rlt_objects::job::Job;
use rlt_objects::prepare::PreparedJobs;
use rlt_objects::worker::{JobKey, Launcher, Worker};
use rlt_objects::worker_id::GroupName;
use rlt_plan::RENDEZVOUS_PORT;

use super::last_report::LastReport;
use super::reports::{JobReport, Reports};
use crate::decide::Report;
use crate::index::Index;
use crate::observe;
use crate::progress::{FollowingPod, ReportingWorker, UnknownWorker, Workers};

/// Longest name of a reason that is kept in a status, in bytes.
const MAX_REASON_BYTES: usize = 64;

impl observe::Reports for Reports {
    fn latest(&self, job: &JobKey) -> Option<Report> {
        let without_step = self.without_step(job);
        self.of(job).map(|report| Report { without_step, ..read(&report) })
    }

    fn left_by(&self, worker: &Worker) -> Option<Report> {
        let LastReport { request, left_out } = self.refused_messages().read_unless_refused(worker)?;
        Some(Report { left_out, ..read(&job_report(worker.attempt, request)) })
    }

    fn changes(&self) -> BoxStream<'static, ObjectRef<Job>> {
        self.take_changes().map_or_else(|| stream::pending().boxed(), StreamExt::boxed)
    }

    fn launchers(&self, job: &JobKey) -> BTreeMap<Arc<str>, Launcher> {
        Reports::launchers(self, job)
    }

    fn launchers_due(&self) -> Option<Duration> {
        Reports::launchers_due(self)
    }

    fn end_launchers(&self, job: &JobKey) {
        Reports::end_launchers(self, job);
    }

    fn forget(&self, job: &JobKey) {
        Reports::forget(self, job);
    }
}

/// Lookup of workers in the operator's caches.
#[derive(Clone, Debug)]
pub struct KnownWorkers {
    /// The cache of the watches.
    pub index: Arc<Index>,
    /// Validated jobs with their plans.
    pub prepared: Arc<PreparedJobs>,
}

impl Workers for KnownWorkers {
    fn worker(&self, job: &JobKey, pod_uid: &str) -> Result<ReportingWorker, UnknownWorker> {
        let workers = self.index.workers(job).into_iter();
        // Reports are about the training: ranks of other groups have the same numbers.
        let mut training = workers.filter(|worker| worker.group == GroupName::default());
        let worker = training.find(|worker| &*worker.uid == pod_uid).ok_or(UnknownWorker::NoWorker)?;
        let ranks = self.prepared.ranks_of(&job.uid, &worker.id()).ok_or(UnknownWorker::NotPlanned)?;
        Ok(ReportingWorker { attempt: worker.attempt, ranks })
    }

    fn pod(&self, job: &JobKey, pod_uid: &str) -> Result<FollowingPod, UnknownWorker> {
        let workers = self.index.workers(job);
        let worker = workers.iter().find(|worker| &*worker.uid == pod_uid).ok_or(UnknownWorker::NoWorker)?;
        if worker.is_spare() {
            return Ok(FollowingPod::default());
        }
        let ranks = self.prepared.ranks_of(&job.uid, &worker.id()).ok_or(UnknownWorker::NotPlanned)?;
        let is_first = |other: &&Arc<Worker>| {
            other.idx == 0 && other.group == worker.group && other.attempt == worker.attempt
        };
        let first = workers.iter().filter(is_first).find(|first| first.is_reachable());
        let assignment =
            first.and_then(|first| first.address.as_deref()).map(|address| channel::Assignment {
                attempt: worker.attempt,
                first_rank: ranks.start,
                master_address: address.to_owned(),
                master_port: RENDEZVOUS_PORT.into(),
            });
        Ok(FollowingPod { attempt: worker.attempt, assignment })
    }
}

pub(super) fn read(report: &JobReport) -> Report {
    Report {
        attempt: report.attempt,
        progress: report.progress.as_ref().and_then(progress),
        checkpoints: report.checkpoints.as_ref().map(|all| all.iter().map(checkpoint).collect()),
        restarts: report
            .restarts
            .iter()
            .filter_map(|(cause, count)| Some((FailureCause::from_name(cause)?, *count)))
            .collect(),
        commits: report.commits.iter().map(commit).collect(),
        without_step: None,
        left_out: Vec::new(),
    }
}

/// Converts the last report of a worker of this attempt to a report of its job.
fn job_report(attempt: u32, request: channel::ReportRequest) -> JobReport {
    let channel::ReportRequest { progress, checkpoints, knows_checkpoints, restarts, commits, .. } = request;
    JobReport {
        attempt,
        progress,
        checkpoints: knows_checkpoints.then_some(checkpoints),
        commits,
        restarts: restarts.into_iter().collect(),
        ..JobReport::default()
    }
}

/// Converts reported progress for the status. `None` before the training: the number of steps is not known
/// yet, or the cold start counts steps of its own.
fn progress(reported: &channel::Progress) -> Option<Progress> {
    if reported.stage() != Stage::Training {
        return None;
    }
    let is_countable = |seconds: &f64| (0.0..=MAX_WHOLE as f64).contains(seconds);
    let seconds = finite(reported.remaining_seconds).filter(is_countable);
    Some(Progress {
        step: reported.step,
        num_steps: reported.num_steps,
        phase: Some(phase(reported).to_owned()),
        reward: finite(reported.reward),
        held_out_reward: finite(reported.held_out_reward),
        kl: finite(reported.kl),
        tokens_per_second: finite(reported.tokens_per_second),
        remaining_seconds: seconds.map(|seconds| seconds as u64),
        goodput: reported.time_spent.as_ref().and_then(goodput),
        result_found: is_found(reported),
        warning_reasons: warning_reasons(reported),
        warning: (!reported.warning.is_empty()).then(|| reported.warning.clone()),
        step_time: reported.step_finished_ms.and_then(time),
        ..Progress::default()
    })
}

/// Whether all steps were finished before this process started.
fn is_found(reported: &channel::Progress) -> bool {
    let has_stepped = reported.time_spent.as_ref().is_none_or(|spent| spent.step_seconds > 0.0);
    reported.num_steps > 0 && reported.step == reported.num_steps && !has_stepped
}

/// Returns the reasons of a warning without duplicates. Reasons of a later release keep their names, so that
/// a further one is noticed. A malformed name becomes `OtherWarning`.
fn warning_reasons(reported: &channel::Progress) -> Vec<String> {
    let is_word = |name: &str| {
        (1..=MAX_REASON_BYTES).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_alphanumeric())
    };
    let known = |name: &String| if is_word(name) { name.clone() } else { Reason::OtherWarning.name() };
    let mut reasons: Vec<String> = reported.warning_reasons.iter().map(known).collect();
    let mut seen = BTreeSet::new();
    reasons.retain(|reason| seen.insert(reason.clone()));
    reasons
}

fn phase(reported: &channel::Progress) -> &'static str {
    match reported.phase() {
        channel::Phase::Unspecified => "Unknown",
        channel::Phase::Setup => "Setup",
        channel::Phase::Rollout => "Rollout",
        channel::Phase::Reward => "Reward",
        channel::Phase::LogProbs => "LogProbs",
        channel::Phase::Update => "Update",
        channel::Phase::Evaluation => "Evaluation",
        channel::Phase::Saving => "Saving",
    }
}

/// Returns the share of the process's time that went into steps, rounded to the percent. With more digits,
/// every report would change the status.
fn goodput(spent: &TimeSpent) -> Option<f64> {
    let share = spent.step_seconds / spent.process_seconds;
    (share.is_finite() && spent.process_seconds > 0.0)
        .then(|| (share.clamp(0.0, 1.0) * 100.0).round() / 100.0)
}

fn checkpoint(reported: &channel::Checkpoint) -> CheckpointStatus {
    CheckpointStatus {
        step: reported.step,
        path: reported.path.clone(),
        digest: reported.digest.clone(),
        world_size: Some(reported.world_size),
        latest: reported.is_latest,
        time: time(reported.committed_ms).unwrap_or_else(|| Timestamp::UNIX_EPOCH.to_string()),
    }
}

fn commit(reported: &channel::ModelCommit) -> CommitStatus {
    let channel::ModelCommit { field, repo, commit } = reported.clone();
    CommitStatus { field, repo, commit }
}

fn time(milliseconds: i64) -> Option<String> {
    // To the second, as Kubernetes writes times.
    Timestamp::from_second(milliseconds.div_euclid(1000)).ok().map(|time| time.to_string())
}

/// Returns a finite value or `None`: JSON has no NaN or infinity, and the API server refuses `null`.
fn finite(value: Option<f64>) -> Option<f64> {
    value.filter(|value| value.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_holds_no_number_that_json_can_not_say() {
        let reported = channel::Progress {
            stage: Stage::Training.into(),
            step: 3,
            num_steps: 10,
            reward: Some(f64::NAN),
            kl: Some(f64::INFINITY),
            remaining_seconds: Some(-1.0),
            time_spent: Some(TimeSpent { step_seconds: 1.0, ..TimeSpent::default() }),
            step_finished_ms: Some(i64::MAX),
            ..channel::Progress::default()
        };
        let status = progress(&reported).unwrap();
        assert_eq!((status.step, status.num_steps), (3, 10));
        assert_eq!(
            (status.reward, status.kl, status.goodput, status.remaining_seconds),
            (None, None, None, None)
        );
        assert_eq!(status.step_time, None);
    }

    #[test]
    fn a_result_is_found_by_a_process_that_has_all_steps_and_made_none() {
        let found = |step: u64, step_seconds: f64| {
            let reported = channel::Progress {
                stage: Stage::Training.into(),
                step,
                num_steps: 10,
                time_spent: Some(TimeSpent { process_seconds: 9.0, step_seconds, ..TimeSpent::default() }),
                ..channel::Progress::default()
            };
            progress(&reported).unwrap().result_found
        };
        assert_eq!([found(10, 0.0), found(10, 0.1), found(9, 0.0)], [true, false, false]);
    }

    #[test]
    fn reasons_of_a_warning_are_there_once_and_those_of_a_later_release_keep_their_names() {
        let names = ["EntropyCollapse", "RunsOnCpu", "EntropyCollapse", "OfALaterRelease", "no word", ""];
        let told = ["EntropyCollapse", "RunsOnCpu", "OfALaterRelease", "OtherWarning"];
        let reported = channel::Progress {
            stage: Stage::Training.into(),
            warning_reasons: names.map(str::to_owned).to_vec(),
            ..channel::Progress::default()
        };
        assert_eq!(progress(&reported).unwrap().warning_reasons, told);
        assert_eq!(Reason::warnings().count(), channel::limits::MAX_WARNING_REASONS, "all fit into a report");
    }

    #[test]
    fn times_are_written_to_the_second_and_goodput_to_the_percent() {
        let spent = TimeSpent { process_seconds: 30.0, step_seconds: 20.0, ..TimeSpent::default() };
        let reported = channel::Progress {
            stage: Stage::Training.into(),
            step_finished_ms: Some(1_700_000_000_999),
            time_spent: Some(spent),
            ..channel::Progress::default()
        };
        let status = progress(&reported).unwrap();
        assert_eq!(status.step_time.as_deref(), Some("2023-11-14T22:13:20Z"));
        assert_eq!(status.goodput, Some(0.67));
    }

    #[test]
    fn the_ranks_of_a_pod_follow_from_its_jobs_plan_and_are_unknown_before_it() {
        use crate::decide::fixtures::{job, worker};
        let of_four = job(&serde_json::json!({}));
        let key = of_four.key();
        let known = KnownWorkers { index: Arc::default(), prepared: Arc::default() };
        let second = worker(1, 1);
        assert_eq!(known.worker(&key, &second.uid).unwrap_err(), UnknownWorker::NoWorker);
        known.index.enter(&key, second.clone());
        assert_eq!(known.worker(&key, &second.uid).unwrap_err(), UnknownWorker::NotPlanned);
        let plan = known.prepared.get(&of_four, &rlt_objects::build::PodSettings::default(), None).unwrap();
        let ranks = plan.plan.worker_groups[0].ranks_per_worker;
        assert_eq!(known.worker(&key, &second.uid).unwrap().ranks, ranks..2 * ranks);
    }

    #[test]
    fn steps_of_the_cold_start_are_not_steps_of_the_job() {
        let reported =
            channel::Progress { stage: Stage::ColdStart.into(), step: 7, ..channel::Progress::default() };
        assert_eq!(progress(&reported), None);
    }
}
