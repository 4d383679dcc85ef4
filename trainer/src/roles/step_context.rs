//! Shared state of the roles during a step: its position, seeds, stop requests, timers, metrics, and
//! observers of the run.
//!
//! The run begins and ends a step here, and roles report into it. A recipe therefore times and logs nothing.

use std::cell::{Cell, Ref, RefCell, RefMut};
use std::collections::BTreeMap;
use std::rc::Rc;

use rlt_core::batch::{Batch, BatchSequence};
use rlt_core::digest::combine;
use rlt_core::metrics::{Metrics, rollout_metrics};
use rlt_core::types::{RewardStatus, RolloutGroup, TokenId};
use rlt_data::seeds::{SeedUse, seed};
use rlt_decoder::RoutesOfCompletion;

use crate::observe::completions;
use crate::observe::observers::Observers;
use crate::observe::phases::{self, PhaseClock, cost_metrics};
use crate::observe::stop::{StopReason, StopRequest};
use crate::observe::tracking::{CompletionRecord, Stage};

/// The position of a step in the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepPosition {
    /// The stage of the run.
    pub stage: Stage,
    /// Number of completed steps of the stage.
    pub num_done: u64,
}

/// The error of a hook at the end of sampling.
pub type HookError = Box<dyn std::error::Error + Send + Sync>;
type Hook = Box<dyn Fn() -> Result<(), HookError>>;

/// Context of the present step, shared by roles and run.
pub struct StepContext {
    job_seed: u64,
    stop: StopRequest,
    watch: RefCell<Observers>,
    position: Cell<StepPosition>,
    record: RefCell<StepRecord>,
    is_sampling: Cell<bool>,
    sampling_hooks: RefCell<Vec<Hook>>,
}

/// Record of a step up to now.
#[derive(Debug)]
struct StepRecord {
    clock: PhaseClock,
    metrics: Metrics,
    num_skipped: usize,
    /// Number of tokens that each role was trained on.
    trained_tokens: BTreeMap<&'static str, usize>,
    num_sampled_tokens: Option<usize>,
    completions: Vec<CompletionRecord>,
    /// Routers' choices in the rollout, by the [`completion_key`] of prompt and completion.
    routes: BTreeMap<u64, RoutesOfCompletion>,
}

impl Default for StepRecord {
    fn default() -> Self {
        Self {
            clock: PhaseClock::start(),
            metrics: Metrics::new(),
            num_skipped: 0,
            trained_tokens: BTreeMap::new(),
            num_sampled_tokens: None,
            completions: Vec::new(),
            routes: BTreeMap::new(),
        }
    }
}

/// Report of a completed step.
#[derive(Debug)]
pub(crate) struct StepReport {
    pub metrics: Metrics,
    /// Number of prompt and completion tokens trained on.
    pub num_tokens: usize,
    /// Number of updates that were skipped because a loss or gradient was not finite.
    pub num_skipped: usize,
    /// Completions to be written to the run folder.
    pub completions: Vec<CompletionRecord>,
}

/// Computes the digest of a prompt and a completion.
pub(crate) fn completion_key(prompt: &[TokenId], completion: &[TokenId]) -> u64 {
    let tokens = prompt.iter().chain(completion);
    tokens.fold(prompt.len() as u64, |key, token| combine(key, u64::from(*token)))
}

impl StepContext {
    /// Creates the context of a run without observers.
    pub fn new(job_seed: u64, stop: StopRequest) -> Rc<Self> {
        let position = StepPosition { stage: Stage::Training, num_done: 0 };
        Rc::new(Self {
            job_seed,
            stop,
            watch: RefCell::new(Observers::none()),
            position: Cell::new(position),
            record: RefCell::default(),
            is_sampling: Cell::new(false),
            sampling_hooks: RefCell::default(),
        })
    }

    /// Returns the position of the step.
    pub fn position(&self) -> StepPosition {
        self.position.get()
    }

    /// Returns the version of the policy: the number of completed training steps.
    pub fn policy_version(&self) -> u64 {
        match self.position() {
            StepPosition { stage: Stage::ColdStart, .. } => 0,
            StepPosition { stage: Stage::Training, num_done } => num_done,
        }
    }

    pub(crate) fn set_position(&self, position: StepPosition) {
        self.position.set(position);
    }

    /// Derives a seed that depends only on the job's seed, its use, and `parts`.
    pub fn seed(&self, usage: SeedUse, parts: &[u64]) -> u64 {
        seed(self.job_seed, usage, parts)
    }

    /// Returns the reason for this rank to stop now; `None` if there is none.
    pub fn stop_reason(&self) -> Option<StopReason> {
        self.stop.reason()
    }

    /// Returns the trackers, the progress and the status channel.
    pub(crate) fn watch(&self) -> Ref<'_, Observers> {
        self.watch.borrow()
    }

    pub(crate) fn watch_mut(&self) -> RefMut<'_, Observers> {
        self.watch.borrow_mut()
    }

    /// Runs `work` and adds its duration to `phase`.
    pub fn measure<T>(&self, phase: &'static str, work: impl FnOnce() -> T) -> T {
        let (result, seconds) = phases::run(phase, work);
        self.record.borrow_mut().clock.add(phase, seconds);
        result
    }

    /// Adds metrics of the step; a later value of a name replaces an earlier one.
    pub fn record(&self, metrics: Metrics) {
        self.record.borrow_mut().metrics.extend(metrics);
    }

    /// Records the updates of `role` on `batch`, `num_skipped` of which were skipped because a loss or
    /// gradient was not finite.
    pub(crate) fn record_update(&self, role: &'static str, batch: &Batch, num_skipped: usize) {
        let mut record = self.record.borrow_mut();
        record.num_skipped += num_skipped;
        *record.trained_tokens.entry(role).or_default() += batch.sequence_lens().iter().sum::<usize>();
    }

    /// Records the step's rollout groups: metrics of their rewards and lengths, and the first groups'
    /// completions. Samples of the `masked` statuses have no advantage.
    pub(crate) fn record_groups(&self, groups: &[RolloutGroup], masked: &[RewardStatus]) {
        let num_new = groups.iter().flat_map(|g| &g.rollouts).map(|r| r.completion.tokens.len()).sum();
        let completions = self.watch().completion_records(self.position().num_done + 1, false, groups);
        let mut record = self.record.borrow_mut();
        record.metrics.extend(rollout_metrics(groups, masked));
        record.num_sampled_tokens = Some(num_new);
        record.completions = completions;
    }

    /// Adds advantages, and the log-probs and values of `batch`, to the recorded completions. The groups of
    /// `batch` must be those of [`Self::record_groups`].
    pub(crate) fn record_advantages(&self, batch: &Batch) {
        completions::add_advantages(&mut self.record.borrow_mut().completions, batch);
    }

    /// Adds the log-probs that the updates on `batch` computed to the recorded completions.
    pub(crate) fn record_actor_logprobs(&self, batch: &Batch, logprobs: &[f64]) {
        completions::add_updates(&mut self.record.borrow_mut().completions, batch, logprobs);
    }

    /// Records the routers' choices in the rollout, by the [`completion_key`] of prompt and completion.
    pub(crate) fn record_routes(&self, routes: impl Iterator<Item = (u64, RoutesOfCompletion)>) {
        self.record.borrow_mut().routes.extend(routes);
    }

    /// Returns the recorded routes of each row of `batch`; empty if none were recorded.
    pub(crate) fn routes_of(&self, batch: &Batch) -> Vec<Option<RoutesOfCompletion>> {
        let record = self.record.borrow();
        if record.routes.is_empty() {
            return Vec::new();
        }
        let key = |sequence: &BatchSequence| completion_key(&sequence.prompt.tokens, &sequence.completion);
        batch.sequences.iter().map(|sequence| record.routes.get(&key(sequence)).cloned()).collect()
    }

    /// Registers a hook that every rank calls when another role computes after sampling, or when the step
    /// ends.
    pub(crate) fn when_sampling_ends(&self, hook: impl Fn() -> Result<(), HookError> + 'static) {
        self.sampling_hooks.borrow_mut().push(Box::new(hook));
    }

    pub(crate) fn begin_sampling(&self) {
        self.is_sampling.set(true);
    }

    /// Calls the hooks before another role computes. They free memory that only sampling needs.
    ///
    /// # Errors
    /// As the hooks of [`Self::when_sampling_ends`].
    pub(crate) fn end_sampling(&self) -> Result<(), HookError> {
        if !self.is_sampling.replace(false) {
            return Ok(());
        }
        self.sampling_hooks.borrow().iter().try_for_each(|hook| hook())
    }

    /// Begins the step at `position`: resets timers and metrics.
    pub(crate) fn begin_step(&self, position: StepPosition) {
        self.set_position(position);
        *self.record.borrow_mut() = StepRecord::default();
    }

    /// Ends the step and returns its report, with its cost.
    pub(crate) fn end_step(&self) -> StepReport {
        let StepRecord {
            clock,
            mut metrics,
            num_skipped,
            trained_tokens,
            num_sampled_tokens,
            completions,
            ..
        } = self.record.take();
        let num_tokens = trained_tokens.into_values().max().unwrap_or_default();
        metrics.insert("training/num_skipped_updates".into(), num_skipped as f64);
        metrics.extend(cost_metrics(num_tokens, &clock));
        if let Some(num_sampled) = num_sampled_tokens {
            let seconds = clock.seconds("gen").max(1e-9);
            metrics.insert("perf/rollout_throughput".into(), num_sampled as f64 / seconds);
        }
        StepReport { metrics, num_tokens, num_skipped, completions }
    }
}

impl std::fmt::Debug for StepContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StepContext at {:?}", self.position())
    }
}
