//! The metrics of a run's finished steps, as far as symptoms need them.

use std::collections::{BTreeMap, VecDeque};

use super::{Symptom, detect};

/// Steps at either end of a run that are compared.
pub(super) const WINDOW: usize = 10;
/// Steps that are kept.
const RECENT: usize = 200;

/// Metrics that are kept of every step; of time all phases are.
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

/// The steps of the training in their order, without those of a cold start and separate evaluations.
/// Its size does not grow with the run.
#[derive(Clone, Debug, Default)]
pub struct Course {
    num_steps: usize,
    /// The first [`WINDOW`] steps.
    first: Vec<Step>,
    /// The newest steps, at most [`RECENT`].
    recent: VecDeque<Step>,
    /// The highest mean of `critic/score/mean` over [`WINDOW`] steps in a row.
    highest_score: Option<f64>,
    /// Lowest and highest score that any sample had.
    scores: Option<(f64, f64)>,
}

/// Metrics of a step by name.
type Step = BTreeMap<String, f64>;

impl Course {
    /// Adds a finished step with its `metrics` by name, as in a line of `metrics.jsonl`. Lines that are no
    /// training step are skipped.
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

    /// Steps so far.
    pub fn num_steps(&self) -> usize {
        self.num_steps
    }

    /// Median seconds of the newest steps, evaluations and checkpoints not counted; `None` without a step.
    pub fn step_seconds(&self) -> Option<f64> {
        median(self.recent.iter().map(seconds_of_step).collect())
    }

    /// The symptoms in the last steps, most important first; none in the first steps of a run.
    pub fn symptoms(&self) -> Vec<Symptom> {
        detect::symptoms(self)
    }

    /// Mean of a metric over the last steps; `None` where one of them lacks it.
    pub(super) fn last(&self, name: &str) -> Option<f64> {
        mean(self.recent.iter().skip(self.recent.len().checked_sub(WINDOW)?), name)
    }

    /// Mean of a metric over the first steps; `None` where one of them lacks it.
    pub(super) fn first(&self, name: &str) -> Option<f64> {
        mean(self.first.get(..WINDOW)?.iter(), name)
    }

    /// The highest mean score over so many steps in a row.
    pub(super) fn highest_score(&self) -> Option<f64> {
        self.highest_score
    }

    /// Lowest and highest score that any sample had.
    pub(super) fn scores(&self) -> Option<(f64, f64)> {
        self.scores
    }

    /// Median of a phase's seconds, or of the whole step's, over the last steps and over those before.
    pub(super) fn seconds_last_and_before(&self, phase: Option<&str>) -> Option<(f64, f64)> {
        let num_before = self.recent.len().checked_sub(WINDOW)?;
        let seconds = |step: &Step| match phase {
            Some(phase) => step.get(phase).copied(),
            None => Some(seconds_of_step(step)),
        };
        let last = median(self.recent.iter().skip(num_before).filter_map(seconds).collect())?;
        Some((last, median(self.recent.iter().take(num_before).filter_map(seconds).collect())?))
    }

    /// The phases of the last step.
    pub(super) fn phases(&self) -> impl Iterator<Item = &str> {
        let names = self.recent.back().into_iter().flat_map(BTreeMap::keys).map(String::as_str);
        names.filter(|name| name.starts_with("timing_s/") && *name != "timing_s/step")
    }
}

/// Evaluations and checkpoints run after the step's timer has stopped, and have their own.
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
