//! Newest report of every job, and the released one from which statuses are written.
//!
//! A status may be written for many reasons. So that progress alone never causes more than one write in ten
//! seconds, readers see a report only once it is released; newer reports stay hidden until then. Nothing is
//! lost when the operator restarts: each rank's next report contains everything.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use kube::runtime::reflector::ObjectRef;
use rlt_channel::{Checkpoint, Ending, ModelCommit, Progress, ReportRequest, Source, TimeSpent};
use rlt_objects::job::Job;
use rlt_objects::worker::{JobKey, Launcher};

use super::last_report::RefusedMessages;
use super::launchers::{Launchers, Taken};
use super::release::{Release, release};
use super::stalls::{self, StepWatch};

/// Time without a new report after which the reports of a job are dropped.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(24 * 3600);

/// Merged reports of the ranks of one job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobReport {
    /// Attempt of the reports, from 1.
    pub attempt: u32,
    /// Progress of rank 0.
    pub progress: Option<Progress>,
    /// All complete checkpoints, oldest first; `None` if rank 0 does not know them yet.
    pub checkpoints: Option<Vec<Checkpoint>>,
    /// Commits at which models from the hub were read; empty if they are not known.
    pub commits: Vec<ModelCommit>,
    /// Metrics of the last step, by name.
    pub metrics: HashMap<String, f64>,
    /// Exits of the ranks' processes in this attempt, by rank.
    pub endings: BTreeMap<u32, Ending>,
    /// Number of restarts in place in this attempt, by the name of the cause.
    pub restarts: BTreeMap<String, u32>,
}

/// Reports of all jobs. Clones share them.
#[derive(Clone, Debug)]
pub struct Reports {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    jobs: Mutex<HashMap<JobKey, Entry>>,
    /// Number of ranks of all jobs that report.
    num_ranks: AtomicUsize,
    launchers: Launchers,
    refused_messages: RefusedMessages,
    /// Jobs to requeue: at most one for each release of a report, which is rare, and each change of a
    /// launcher.
    changes: UnboundedSender<ObjectRef<Job>>,
    receiver: Mutex<Option<UnboundedReceiver<ObjectRef<Job>>>>,
}

#[derive(Debug)]
struct Entry {
    job: ObjectRef<Job>,
    newest: JobReport,
    heard_at: Instant,
    /// The steps of the newest attempt; `None` until rank 0 has reported its progress.
    steps: Option<StepWatch>,
    /// Last sequence number of each rank of the newest attempt.
    sequences: HashMap<u32, u64>,
    released: Option<(Arc<JobReport>, Instant)>,
    is_timer_set: bool,
}

impl Default for Reports {
    fn default() -> Self {
        Self::new()
    }
}

impl Reports {
    /// Returns an empty store.
    pub fn new() -> Self {
        let (changes, receiver) = unbounded();
        Self {
            shared: Arc::new(Shared {
                jobs: Mutex::default(),
                num_ranks: AtomicUsize::new(0),
                launchers: Launchers::default(),
                refused_messages: RefusedMessages::default(),
                changes,
                receiver: Mutex::new(Some(receiver)),
            }),
        }
    }

    /// Returns the receiver of jobs to requeue because of a report; `None` after the first call.
    pub fn take_changes(&self) -> Option<UnboundedReceiver<ObjectRef<Job>>> {
        self.shared.receiver.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Returns the released report of a job; `None` without one.
    pub fn of(&self, job: &JobKey) -> Option<Arc<JobReport>> {
        self.shared.lock().get(job)?.released.as_ref().map(|(report, _)| Arc::clone(report))
    }

    /// Returns the time of the last report of any of the job's ranks, with or without changes.
    pub fn heard_at(&self, job: &JobKey) -> Option<Instant> {
        Some(self.shared.lock().get(job)?.heard_at)
    }

    /// Returns the time, by this operator's clock, since the newest attempt last reported that its training
    /// advanced; `None` while its rank 0 is silent.
    pub fn without_step(&self, job: &JobKey) -> Option<Duration> {
        let silent_after = self.shared.silent_after();
        self.shared.lock().get(job)?.steps.as_ref()?.without_step(Instant::now(), silent_after)
    }

    /// Returns the last reports of the launchers of a job's pods, by the UID of their pods.
    pub fn launchers(&self, job: &JobKey) -> BTreeMap<Arc<str>, Launcher> {
        self.shared.launchers.of(job, Instant::now())
    }

    /// Returns the record of termination messages that were refused.
    pub(super) fn refused_messages(&self) -> &RefusedMessages {
        &self.shared.refused_messages
    }

    /// Records that launchers can report to this process when it leads.
    pub fn expect_launchers(&self) {
        self.shared.launchers.expect_reports();
    }

    /// Records that this process leads, so that launchers report to it from now on.
    pub fn lead(&self) {
        self.shared.launchers.lead(Instant::now());
    }

    /// Returns the time that launchers have left to report to this process after a change of the leader;
    /// `None` once it is over.
    pub fn launchers_due(&self) -> Option<Duration> {
        self.shared.launchers.due(Instant::now())
    }

    /// Tells the launchers of a job that no attempt follows.
    pub fn end_launchers(&self, job: &JobKey) {
        self.shared.launchers.end(job);
    }

    /// Stores the report of an authenticated pod's launcher, and requeues the job if it differs from the last
    /// report.
    pub(super) fn take_launcher(&self, source: &Source, pod_uid: &str, launcher: Launcher) -> Taken {
        let taken = self.shared.launchers.take(&job(source), pod_uid, launcher, Instant::now());
        if taken.is_news {
            // Without a receiver the operator is ending.
            let _ = self.shared.changes.unbounded_send(object(source));
        }
        taken
    }

    /// Drops the reports of a deleted job.
    pub fn forget(&self, job: &JobKey) {
        self.shared.lock().remove(job);
        self.shared.launchers.forget(job);
    }

    /// Returns the number of jobs with reports.
    pub fn len(&self) -> usize {
        self.shared.lock().len()
    }

    /// Whether no job has reports.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sums the time that running jobs spent, by activity.
    pub fn time_spent(&self) -> TimeSpent {
        let jobs = self.shared.lock();
        let running = jobs.values().filter(|entry| entry.newest.endings.is_empty());
        let all = running.filter_map(|entry| entry.newest.progress.as_ref()?.time_spent);
        // A NaN would make every sum NaN.
        let all = all.filter(|one| one.process_seconds.is_finite() && one.step_seconds.is_finite());
        all.fold(TimeSpent::default(), |sum, one| TimeSpent {
            process_seconds: sum.process_seconds + one.process_seconds,
            setup_seconds: sum.setup_seconds + one.setup_seconds,
            step_seconds: sum.step_seconds + one.step_seconds,
            evaluation_seconds: sum.evaluation_seconds + one.evaluation_seconds,
            checkpoint_seconds: sum.checkpoint_seconds + one.checkpoint_seconds,
            resumed_after_step: 0,
        })
    }

    /// Stores a report of an authenticated rank; an outdated one changes nothing. Returns the number of
    /// reporting ranks of all jobs. Must be called within a tokio runtime.
    pub fn take(&self, source: &Source, report: ReportRequest) -> usize {
        let (now, silent_after) = (Instant::now(), self.shared.silent_after());
        let mut jobs = self.shared.lock();
        jobs.retain(|_, entry| now.duration_since(entry.heard_at) < FORGOTTEN_AFTER);
        let key = job(source);
        let entry = jobs.entry(key.clone()).or_insert_with(|| Entry::new(source, now));
        if entry.take(source, report, now, silent_after) {
            self.shared.judge(entry, &key, now);
        }
        let num_ranks = jobs.values().map(Entry::num_ranks).sum();
        self.shared.num_ranks.store(num_ranks, Ordering::Relaxed);
        num_ranks
    }
}

/// Returns the key of the job that reports.
pub(super) fn job(source: &Source) -> JobKey {
    JobKey {
        uid: source.job_uid.as_str().into(),
        namespace: source.namespace.as_str().into(),
        name: source.name.as_str().into(),
    }
}

fn object(source: &Source) -> ObjectRef<Job> {
    ObjectRef::new(&source.name).within(&source.namespace)
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, HashMap<JobKey, Entry>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn silent_after(&self) -> Duration {
        stalls::silent_after(self.num_ranks.load(Ordering::Relaxed))
    }

    fn judge(self: &Arc<Self>, entry: &mut Entry, job: &JobKey, now: Instant) {
        let released = entry.released.as_ref().map(|(report, at)| (&**report, *at));
        match release(released, &entry.newest, now) {
            Release::Never => {}
            Release::Now => self.release(entry, now),
            Release::At(due) if !entry.is_timer_set => {
                entry.is_timer_set = true;
                tokio::spawn(release_at(Arc::downgrade(self), job.clone(), due));
            }
            Release::At(_) => {}
        }
    }

    fn release(&self, entry: &mut Entry, now: Instant) {
        entry.released = Some((Arc::new(entry.newest.clone()), now));
        // Without a receiver the operator is ending.
        let _ = self.changes.unbounded_send(entry.job.clone());
    }
}

async fn release_at(shared: Weak<Shared>, job: JobKey, due: Instant) {
    tokio::time::sleep_until(due.into()).await;
    let Some(shared) = shared.upgrade() else { return };
    let mut jobs = shared.lock();
    if let Some(entry) = jobs.get_mut(&job) {
        entry.is_timer_set = false;
        shared.judge(entry, &job, Instant::now().max(due));
    }
}

impl Entry {
    fn new(source: &Source, now: Instant) -> Self {
        Self {
            job: object(source),
            newest: JobReport { attempt: source.attempt, ..JobReport::default() },
            heard_at: now,
            steps: None,
            sequences: HashMap::new(),
            released: None,
            is_timer_set: false,
        }
    }

    /// Returns the number of ranks that are still reporting.
    fn num_ranks(&self) -> usize {
        self.sequences.len().saturating_sub(self.newest.endings.len())
    }

    /// Merges a report; returns false if it is outdated.
    fn take(&mut self, source: &Source, report: ReportRequest, now: Instant, silent_after: Duration) -> bool {
        if source.attempt < self.newest.attempt {
            return false;
        }
        if source.attempt > self.newest.attempt {
            // A new attempt has not reported checkpoints yet; those of the previous one still exist.
            let checkpoints = self.newest.checkpoints.take();
            self.newest = JobReport { attempt: source.attempt, checkpoints, ..JobReport::default() };
            self.sequences.clear();
            self.steps = None;
        }
        let sequence = self.sequences.entry(source.rank).or_default();
        if report.sequence <= *sequence {
            return false;
        }
        *sequence = report.sequence;
        self.heard_at = now;
        let ReportRequest {
            progress,
            checkpoints,
            metrics,
            ending,
            knows_checkpoints,
            restarts,
            commits,
            ..
        } = report;
        match ending {
            Some(ending) => self.newest.endings.insert(source.rank, ending),
            None => self.newest.endings.remove(&source.rank),
        };
        for (cause, count) in restarts {
            let known = self.newest.restarts.entry(cause).or_default();
            *known = count.max(*known);
        }
        if source.rank == 0 {
            self.watch_steps(progress.as_ref(), now, silent_after);
            self.newest.progress = progress;
            self.newest.metrics = metrics;
            self.newest.commits = commits;
            if knows_checkpoints {
                self.newest.checkpoints = Some(checkpoints);
            }
        }
        true
    }

    fn watch_steps(&mut self, progress: Option<&Progress>, now: Instant, silent_after: Duration) {
        let Some(progress) = progress else { return };
        let heard = StepWatch::new(progress, self.newest.restarts.values().sum(), now);
        match &mut self.steps {
            Some(steps) => steps.hear(heard, silent_after),
            steps @ None => *steps = Some(heard),
        }
    }
}

#[cfg(test)]
mod tests;
