//! Threads that judge a batch, under a time limit for every single call.
//!
//! A thread cannot be stopped from outside, so a thread that exceeds its limit is abandoned: its sample
//! counts as timed out, its later result is discarded, and another thread replaces it. If [`MAX_ABANDONED`]
//! threads hang at the same time, no further thread is started, and samples without a thread fail at once. A
//! step therefore ends in bounded time, whatever the functions do.

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rlt_core::reward::combine::parts_by_name;
use rlt_core::reward::{Sample, Verdict, Verdicts, WeightedPart};
use rlt_core::types::{Completion, Prompt, Reward, RewardStatus};
use rlt_terminal::panics;

use super::RewardFunctions;

/// Maximum number of threads that may hang at the same time before no more threads are started.
const MAX_ABANDONED: usize = 64;

/// Number of threads and time limit of a pool.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PoolOptions {
    /// Number of threads that judge at the same time, at least 1.
    pub num_workers: usize,
    /// Time limit of one function on one completion.
    pub timeout: Duration,
}

/// Judges batches of completions on several threads, under a time limit for every call.
pub struct RewardPool {
    functions: Arc<RewardFunctions>,
    options: PoolOptions,
    num_abandoned: Arc<AtomicUsize>,
    clock: Box<CallClock>,
}

/// Returns the time for which a call of a function has run.
type CallClock = dyn Fn(&Call) -> Duration + Send + Sync;

impl RewardPool {
    /// Creates a pool. Its threads exist only during a call of [`RewardPool::score`].
    pub fn new(functions: RewardFunctions, options: PoolOptions) -> Self {
        let clock = Box::new(|call: &Call| call.started.elapsed());
        Self { functions: Arc::new(functions), options, num_abandoned: Arc::default(), clock }
    }

    /// Replaces the measured duration of calls by `clock`, so that a test decides which calls hang.
    #[cfg(test)]
    pub(super) fn with_clock(self, clock: impl Fn(&Call) -> Duration + Send + Sync + 'static) -> Self {
        Self { clock: Box::new(clock), ..self }
    }

    /// Computes the reward of each sample, given its external verdicts, in the order of the samples.
    ///
    /// A sample that lacks the verdict of a function has value 0, no parts, and a status that is no verdict.
    pub fn score<'a>(
        &self,
        samples: impl IntoIterator<Item = ((&'a Arc<Prompt>, &'a Completion), Verdicts)>,
    ) -> Vec<Reward> {
        let jobs: Vec<Job> = samples
            .into_iter()
            .map(|((prompt, completion), verdicts)| Job::new(prompt, completion, verdicts))
            .collect();
        let batch = Arc::new(Batch::new(jobs, self.functions.clone(), self.num_abandoned.clone()));
        let num_workers = self.options.num_workers.clamp(1, batch.jobs.len().max(1));
        let mut workers: Vec<Arc<Worker>> = (0..num_workers).filter_map(|_| batch.start_worker()).collect();
        while !batch.wait(self.poll_interval()) {
            self.replace_hung(&batch, &mut workers);
            if workers.is_empty() {
                batch.fail_unclaimed();
            }
        }
        batch.rewards()
    }

    /// Returns the number of threads of this and earlier calls that hang in a function now.
    pub fn num_abandoned(&self) -> usize {
        self.num_abandoned.load(Ordering::Acquire)
    }

    fn poll_interval(&self) -> Duration {
        (self.options.timeout / 8).clamp(Duration::from_millis(1), Duration::from_millis(100))
    }

    fn replace_hung(&self, batch: &Arc<Batch>, workers: &mut Vec<Arc<Worker>>) {
        let num_before = workers.len();
        workers.retain(|worker| !worker.abandon_if_hung(batch, self.options.timeout, &*self.clock));
        for _ in workers.len()..num_before {
            if self.num_abandoned() < MAX_ABANDONED {
                workers.extend(batch.start_worker());
            }
        }
    }
}

/// Input of a thread for one sample.
struct Job {
    prompt: Arc<Prompt>,
    text: String,
    num_tokens: usize,
    verdicts: Verdicts,
}

impl Job {
    fn new(prompt: &Arc<Prompt>, completion: &Completion, verdicts: Verdicts) -> Self {
        let (text, num_tokens) = (completion.text.clone(), completion.tokens.len());
        Self { prompt: prompt.clone(), text, num_tokens, verdicts }
    }

    fn sample(&self) -> Sample<'_> {
        Sample {
            prompt: &self.prompt.text,
            completion: &self.text,
            num_tokens: self.num_tokens,
            ground_truth: &self.prompt.ground_truth,
            extra_info: &self.prompt.extra_info,
            verdicts: &self.verdicts,
        }
    }
}

/// Samples of one call, shared with its threads.
struct Batch {
    jobs: Vec<Job>,
    rewards: Vec<OnceLock<Reward>>,
    next_job: AtomicUsize,
    num_unfinished: Mutex<usize>,
    finished: Condvar,
    functions: Arc<RewardFunctions>,
    num_abandoned: Arc<AtomicUsize>,
}

impl Batch {
    fn new(jobs: Vec<Job>, functions: Arc<RewardFunctions>, num_abandoned: Arc<AtomicUsize>) -> Self {
        let rewards = jobs.iter().map(|_| OnceLock::new()).collect();
        let num_unfinished = Mutex::new(jobs.len());
        let (next_job, finished) = (AtomicUsize::new(0), Condvar::new());
        Self { jobs, rewards, next_job, num_unfinished, finished, functions, num_abandoned }
    }

    /// Waits for the last reward; returns false if `interval` passes first.
    fn wait(&self, interval: Duration) -> bool {
        let unfinished = locked(&self.num_unfinished);
        let waited = self.finished.wait_timeout_while(unfinished, interval, |num| *num > 0);
        *waited.unwrap_or_else(PoisonError::into_inner).0 == 0
    }

    fn start_worker(self: &Arc<Self>) -> Option<Arc<Worker>> {
        let worker = Arc::new(Worker::default());
        let (batch, own) = (self.clone(), worker.clone());
        let started = thread::Builder::new().name("reward".to_owned()).spawn(move || own.run(&batch));
        started.ok().map(|_| worker)
    }

    fn claim(&self) -> Option<usize> {
        let idx = self.next_job.fetch_add(1, Ordering::Relaxed);
        (idx < self.jobs.len()).then_some(idx)
    }

    fn finish(&self, idx: usize, reward: Reward) {
        if self.rewards[idx].set(reward).is_err() {
            return;
        }
        let mut unfinished = locked(&self.num_unfinished);
        *unfinished -= 1;
        if *unfinished == 0 {
            self.finished.notify_all();
        }
    }

    /// Fails the samples that no thread has started, once no thread is left and none can be started.
    fn fail_unclaimed(&self) {
        let message = "no thread is left to judge it: the others hang in reward functions or could not start";
        while let Some(idx) = self.claim() {
            self.finish(idx, without_value(RewardStatus::Infra, message.to_owned()));
        }
    }

    fn rewards(&self) -> Vec<Reward> {
        let lost = || without_value(RewardStatus::Infra, "no reward was recorded".to_owned());
        self.rewards.iter().map(|reward| reward.get().cloned().unwrap_or_else(lost)).collect()
    }
}

/// Handle of one thread.
#[derive(Default)]
struct Worker {
    state: Mutex<WorkerState>,
}

#[derive(Default)]
struct WorkerState {
    running: Option<Call>,
    is_abandoned: bool,
}

/// A call of a function that has not returned.
#[derive(Clone)]
pub(super) struct Call {
    /// Index of the sample in its batch.
    pub(super) job_idx: usize,
    function: String,
    started: Instant,
}

/// Signal that the thread was abandoned while a function ran, so its sample already has a result.
struct TimedOut;

impl Worker {
    fn run(&self, batch: &Batch) {
        while let Some(idx) = batch.claim() {
            match self.judge(batch, idx) {
                Ok(reward) => batch.finish(idx, reward),
                Err(TimedOut) => {
                    batch.num_abandoned.fetch_sub(1, Ordering::AcqRel);
                    return;
                }
            }
        }
    }

    fn judge(&self, batch: &Batch, job_idx: usize) -> Result<Reward, TimedOut> {
        let job = &batch.jobs[job_idx];
        let (mut parts, mut answer) = (Vec::new(), None);
        let (mut status, mut fault) = (RewardStatus::Ok, None);
        for named in batch.functions.judging(&job.prompt.data_source) {
            self.begin(Call { job_idx, function: named.name.clone(), started: Instant::now() });
            let judged = || (named.function.judge(&job.sample()), named.function.answer(&job.text));
            let outcome = catch_unwind(AssertUnwindSafe(judged));
            self.end()?;
            let said = |message: String| format!("{}: {message}", named.name);
            let (Verdict { status: own, value, message }, found) = match outcome {
                Ok(judged) => judged,
                Err(payload) => {
                    let message = said(format!("panicked: {}", panics::message(&*payload)));
                    return Ok(without_value(RewardStatus::Infra, message));
                }
            };
            if !own.is_verdict() {
                return Ok(without_value(own, said(message.unwrap_or_default())));
            }
            if !value.is_finite() {
                let message = said(format!("returned {value}, expected a finite number"));
                return Ok(without_value(RewardStatus::Infra, message));
            }
            answer = answer.or_else(|| found.map(Cow::into_owned));
            (status, fault) = (status.max(own), fault.or_else(|| message.map(said)));
            parts.push(WeightedPart { name: &named.name, weight: named.weight, value });
        }
        let combiner = batch.functions.combiner();
        let score = combiner.score(parts.iter().copied());
        let value = combiner.shaped(score, job.num_tokens);
        let parts = parts_by_name(parts);
        Ok(Reward { score, value, parts, answer, status, message: fault })
    }

    fn begin(&self, call: Call) {
        locked(&self.state).running = Some(call);
    }

    fn end(&self) -> Result<(), TimedOut> {
        let mut state = locked(&self.state);
        state.running = None;
        if state.is_abandoned { Err(TimedOut) } else { Ok(()) }
    }

    /// Abandons the thread if its call exceeds the time limit, and settles the call's sample. The state stays
    /// locked meanwhile, so the thread sees that it was abandoned before it can write a reward.
    fn abandon_if_hung(&self, batch: &Batch, timeout: Duration, clock: &CallClock) -> bool {
        let mut state = locked(&self.state);
        let Some(call) = state.running.clone().filter(|call| clock(call) > timeout) else {
            return false;
        };
        state.is_abandoned = true;
        batch.num_abandoned.fetch_add(1, Ordering::AcqRel);
        let message = format!("{}: no answer within {timeout:?}", call.function);
        batch.finish(call.job_idx, without_value(RewardStatus::Timeout, message));
        true
    }
}

fn without_value(status: RewardStatus, message: String) -> Reward {
    Reward { score: 0.0, value: 0.0, parts: Default::default(), answer: None, status, message: Some(message) }
}

/// Locks a mutex, also after a panic: no value behind these locks can be left half changed.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
