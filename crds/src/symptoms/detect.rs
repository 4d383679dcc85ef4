//! Detectors, one function for each symptom: from the metrics of a run to the evidence.
//!
//! Thresholds are set so that a successful run has no symptom. A value that is not bad by itself is compared
//! with the first steps of the same run.

use super::course::{Course, WINDOW};
use super::{Symptom, SymptomKind};

/// Fraction of samples without a reward above which rewards count as lost.
const MAX_LOST: f64 = 0.2;
/// Largest healthy mean difference between a token's probability in rollout and training; in bf16 it is below
/// 0.01.
const MAX_PROBS_DIFF: f64 = 0.02;
/// Least healthy correlation of a token's probability in rollout and training; with the same weights it is
/// above 0.99.
const MIN_CORRELATION: f64 = 0.95;
/// Largest healthy fraction of groups whose rewards are all equal, and which therefore give no gradient.
const MAX_EQUAL: f64 = 0.9;
/// Fraction of the best reward from which on a task counts as learned.
const LEARNED: f64 = 0.9;
/// Least healthy ratio of the entropy of the last steps to that of the first.
const MIN_ENTROPY_RATIO: f64 = 0.15;
/// Thresholds of a runaway KL divergence: its value in nats per token, and its growth since the first steps.
const MAX_KL: f64 = 1.0;
const KL_GROWTH: f64 = 5.0;
/// Largest healthy fraction of completions that reach the length limit.
const MAX_CUT_OFF: f64 = 0.5;
/// Thresholds of a slowdown: the ratio of a step's seconds to those of earlier steps, and the least
/// difference in seconds, because milliseconds do not matter.
const SLOWDOWN: f64 = 3.0;
const MIN_SLOWDOWN_SECONDS: f64 = 0.5;

type Detector = fn(&Course) -> Option<String>;

/// Returns all symptoms of a run, in the order of their kinds.
pub(super) fn symptoms(course: &Course) -> Vec<Symptom> {
    let evidence = SymptomKind::ALL.into_iter().map(|kind| (kind, detector(kind)(course)));
    evidence.filter_map(|(kind, evidence)| Some(Symptom { kind, evidence: evidence? })).collect()
}

fn detector(kind: SymptomKind) -> Detector {
    match kind {
        SymptomKind::SkippedUpdates => skipped_updates,
        SymptomKind::LostRewards => lost_rewards,
        SymptomKind::NoReward => no_reward,
        SymptomKind::RolloutMismatch => rollout_mismatch,
        SymptomKind::RewardCollapse => reward_collapse,
        SymptomKind::EqualRewards => equal_rewards,
        SymptomKind::EntropyCollapse => entropy_collapse,
        SymptomKind::KlRunaway => kl_runaway,
        SymptomKind::LengthExplosion => length_explosion,
        SymptomKind::Slowdown => slowdown,
    }
}

fn skipped_updates(course: &Course) -> Option<String> {
    let skipped = course.last("training/num_skipped_updates")? * WINDOW as f64;
    (skipped >= 3.0)
        .then(|| format!("skips updates: {skipped:.0} gradients of its last {WINDOW} steps were not finite"))
}

fn lost_rewards(course: &Course) -> Option<String> {
    let lost = course.last("reward/error_ratio")?;
    (lost > MAX_LOST).then(|| {
        format!("loses rewards: {:.0} % of the samples of its last {WINDOW} steps have none", 100.0 * lost)
    })
}

/// Detects a run of any length in which no sample has had a reward, and says whether completions are cut off
/// before their answer.
fn no_reward(course: &Course) -> Option<String> {
    if !is_unrewarded(course) {
        return None;
    }
    let cut_off = course.newest("response_length/clip_ratio").map(|cut_off| {
        let cause = if cut_off > MAX_CUT_OFF {
            "so most have no room for an answer"
        } else {
            "so most have an answer, which no reward function accepts"
        };
        format!("; {:.0} % of the newest completions are cut off, {cause}", 100.0 * cut_off)
    });
    let steps = match course.num_steps() {
        1 => "its only step".to_owned(),
        num_steps => format!("all of its {num_steps} steps"),
    };
    Some(format!("earns nothing: the reward of every sample is 0, in {steps}{}", cut_off.unwrap_or_default()))
}

/// Whether all samples of the run so far have the reward 0.
fn is_unrewarded(course: &Course) -> bool {
    course.scores() == Some((0.0, 0.0))
}

fn rollout_mismatch(course: &Course) -> Option<String> {
    let difference = course.last("training/rollout_probs_diff_mean")?;
    let correlation = course.last("training/rollout_actor_probs_pearson_corr").unwrap_or(1.0);
    (difference > MAX_PROBS_DIFF || correlation < MIN_CORRELATION).then(|| {
        format!(
            "samples from other probabilities than it trains: over its last {WINDOW} steps a token's differ by \
             {difference:.3} in the mean and correlate by {correlation:.3}"
        )
    })
}

fn reward_collapse(course: &Course) -> Option<String> {
    let score = "critic/score/mean";
    let (first, highest, last) = (course.first(score)?, course.highest_score()?, course.last(score)?);
    let (low, high) = course.scores()?;
    let gained = highest - first;
    (gained > 0.1 * (high - low) && last < highest - 0.5 * gained).then(|| {
        format!(
            "loses its reward: {last:.3} over its last {WINDOW} steps, {highest:.3} at its best, {first:.3} at \
             the beginning"
        )
    })
}

fn equal_rewards(course: &Course) -> Option<String> {
    let equal = course.last("train/frac_reward_zero_std")?;
    (equal >= MAX_EQUAL && !is_learned(course)? && !is_unrewarded(course)).then(|| {
        let reward = course.last("critic/score/mean").unwrap_or_default();
        format!(
            "learns next to nothing: in {:.0} % of the groups of its last {WINDOW} steps all rewards are equal, \
             at a mean reward of {reward:.3}",
            100.0 * equal
        )
    })
}

fn entropy_collapse(course: &Course) -> Option<String> {
    let (first, last) = (course.first("actor/entropy")?, course.last("actor/entropy")?);
    (course.num_steps() >= 2 * WINDOW && last < MIN_ENTROPY_RATIO * first && !is_learned(course)?).then(|| {
        format!(
            "has lost its entropy: {last:.4} nats per token over its last {WINDOW} steps, {first:.3} over its \
             first, while rewards can still be gained"
        )
    })
}

fn kl_runaway(course: &Course) -> Option<String> {
    let of = |name: &str| Some((course.first(name)?, course.last(name)?));
    let (first, last) = of("actor/kl_loss").or_else(|| of("actor/reward_kl_penalty"))?;
    (course.num_steps() >= 2 * WINDOW && last > MAX_KL && last > KL_GROWTH * first).then(|| {
        format!(
            "runs away from its reference: KL {last:.2} nats per token over its last {WINDOW} steps, \
             {first:.3} over its first"
        )
    })
}

fn length_explosion(course: &Course) -> Option<String> {
    let (cut_off, length) =
        (course.last("response_length/clip_ratio")?, course.last("response_length/mean")?);
    let (cut_off_first, length_first) =
        (course.first("response_length/clip_ratio")?, course.first("response_length/mean")?);
    let has_grown = course.num_steps() >= 2 * WINDOW && length > 1.25 * length_first;
    (cut_off > MAX_CUT_OFF && has_grown && cut_off > cut_off_first).then(|| {
        format!(
            "writes to the limit: {:.0} % of the completions of its last {WINDOW} steps are cut off, at \
             {length:.0} tokens in the mean; {:.0} % at {length_first:.0} in its first",
            100.0 * cut_off,
            100.0 * cut_off_first,
        )
    })
}

fn slowdown(course: &Course) -> Option<String> {
    let (last, before) = course.seconds_last_and_before(None)?;
    if course.num_steps() < 2 * WINDOW || last <= SLOWDOWN * before || last - before < MIN_SLOWDOWN_SECONDS {
        return None;
    }
    let growth = |phase: &str| {
        let (last, before) = course.seconds_last_and_before(Some(phase))?;
        Some((last - before, phase.to_owned(), last, before))
    };
    let grown = course.phases().filter_map(growth).max_by(|one, other| one.0.total_cmp(&other.0));
    let phase = grown.map(|(_, phase, last, before)| format!("; {phase} {last:.1} s after {before:.1} s"));
    Some(format!(
        "slows down: {last:.1} s a step over its last {WINDOW}, {before:.1} s before{}",
        phase.unwrap_or_default()
    ))
}

/// Whether the mean reward of the last steps is close to the best reward of any sample, so that little is
/// left to learn.
fn is_learned(course: &Course) -> Option<bool> {
    let (low, high) = course.scores()?;
    let last = course.last("critic/score/mean")?;
    Some(high > low && last - low >= LEARNED * (high - low))
}
