//! Metrics of a run's finished steps, as far as symptoms need them.

use std::collections::{BTreeMap, VecDeque};

use super::{Symptom, detect};

/// Number of steps at either end of a run that are compared.
pub(super) const WINDOW: usize = 10;
/// Number of steps whose metrics are kept.
const RECENT: usize = 200;

/// Metrics that are kept for every step; all phases' times are kept as well.
const KEPT: [&str; 13] = [
    "actor/entropy",
    "actor/kl_loss",
    "actor/reward_kl_penalty",
    "critic/score/max",
    "critic/score/mean",
    "critic/score/min",
    "response_length/clip_ratio",
    "response_length/mean",
    "reward/error_ratio",
    "train/frac_reward_zero_std",
    "training/num_skipped_updates",
    "training/rollout_probs_diff_mean",
    "training/rollout_actor_probs_pearson_corr",
];

/// Metrics of the training's steps in order, without those of a cold start and separate evaluations. The size
/// does not grow with the run.
#[derive(Clone, Debug, Default)]
pub struct Course {
    num_steps: usize,
    /// The first [`WINDOW`] steps.
    first: Vec<Step>,
    /// The newest steps, at most [`RECENT`].
    recent: VecDeque<Step>,
    /// Highest mean of `critic/score/mean` over [`WINDOW`] consecutive steps.
    highest_score: Option<f64>,
    /// Lowest and highest score of any sample.
    scores: Option<(f64, f64)>,
}

/// Metrics of a step, by name.
type Step = BTreeMap<String, f64>;

impl Course {
    /// Adds a finished step with its `metrics` by name, as in a line of `metrics.jsonl`. Lines of other kinds
    /// are skipped.
    pub fn push<'a>(&mut self, metrics: impl IntoIterator<Item = (&'a str, f64)>) {
        let is_kept = |name: &str| KEPT.contains(&name) || name.starts_with("timing_s/");
        let kept = metrics.into_iter().filter(|(name, value)| is_kept(name) && value.is_finite());
        let step: Step = kept.map(|(name, value)| (name.to_owned(), value)).collect();
        if !step.contains_key("timing_s/step") {
            return;
        }
        self.num_steps += 1;
        if self.first.len() < WINDOW {
            self.first.push(step.clone());
        }
        if let (Some(low), Some(high)) = (step.get("critic/score/min"), step.get("critic/score/max")) {
            let (lowest, highest) = self.scores.unwrap_or((*low, *high));
            self.scores = Some((lowest.min(*low), highest.max(*high)));
        }
        self.recent.push_back(step);
        if self.recent.len() > RECENT {
            self.recent.pop_front();
        }
        self.highest_score =
            [self.highest_score, self.last("critic/score/mean")].into_iter().flatten().reduce(f64::max);
    }

    /// Number of steps so far.
    pub fn num_steps(&self) -> usize {
        self.num_steps
    }

    /// Median seconds of the newest steps, without evaluations and checkpoints; `None` without a step.
    pub fn step_seconds(&self) -> Option<f64> {
        median(self.recent.iter().map(seconds_of_step).collect())
    }

    /// Returns the symptoms in the last steps, most important first. In the first steps of a run only
    /// [`NoReward`](super::SymptomKind::NoReward) is detected.
    pub fn symptoms(&self) -> Vec<Symptom> {
        detect::symptoms(self)
    }

    /// Mean of a metric over the last [`WINDOW`] steps; `None` where one of them lacks it.
    pub(super) fn last(&self, name: &str) -> Option<f64> {
        mean(self.recent.iter().skip(self.recent.len().checked_sub(WINDOW)?), name)
    }

    /// Mean of a metric over the last steps, at most [`WINDOW`]; `None` where one of them lacks it.
    pub(super) fn newest(&self, name: &str) -> Option<f64> {
        mean(self.recent.iter().rev().take(WINDOW), name)
    }

    /// Mean of a metric over the first [`WINDOW`] steps; `None` where one of them lacks it.
    pub(super) fn first(&self, name: &str) -> Option<f64> {
        mean(self.first.get(..WINDOW)?.iter(), name)
    }

    /// Highest mean score over [`WINDOW`] consecutive steps.
    pub(super) fn highest_score(&self) -> Option<f64> {
        self.highest_score
    }

    /// Lowest and highest score of any sample.
    pub(super) fn scores(&self) -> Option<(f64, f64)> {
        self.scores
    }

    /// Median of a phase's seconds, or of the whole step's, over the last [`WINDOW`] steps and over the kept
    /// steps before.
    pub(super) fn seconds_last_and_before(&self, phase: Option<&str>) -> Option<(f64, f64)> {
        let num_before = self.recent.len().checked_sub(WINDOW)?;
        let seconds = |step: &Step| match phase {
            Some(phase) => step.get(phase).copied(),
            None => Some(seconds_of_step(step)),
        };
        let last = median(self.recent.iter().skip(num_before).filter_map(seconds).collect())?;
        Some((last, median(self.recent.iter().take(num_before).filter_map(seconds).collect())?))
    }

    /// Yields the phases of the last step, by metric name.
    pub(super) fn phases(&self) -> impl Iterator<Item = &str> {
        let names = self.recent.back().into_iter().flat_map(BTreeMap::keys).map(String::as_str);
        names.filter(|name| name.starts_with("timing_s/") && *name != "timing_s/step")
    }
}

/// Seconds of a step. Evaluations and checkpoints run after the step's timer has stopped, and have their own.
fn seconds_of_step(step: &Step) -> f64 {
    step.get("timing_s/step").copied().unwrap_or_default()
}

fn mean<'a>(steps: impl Iterator<Item = &'a Step>, name: &str) -> Option<f64> {
    let values: Option<Vec<f64>> = steps.map(|step| step.get(name).copied()).collect();
    let values = values.filter(|values| !values.is_empty())?;
    Some(values.iter().sum::<f64>() / values.len() as f64)
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}
