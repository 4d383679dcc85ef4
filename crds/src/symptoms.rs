//! Symptoms in the metrics of a run, by their usual names (entropy collapse, KL runaway), with the evidence
//! and the fields to check.
//!
//! Pure functions of the metrics of finished steps ([`Course`]). Reading and writing files, and reporting to
//! the user, is elsewhere.

mod course;
mod detect;

pub use course::Course;

use serde::Serialize;

/// A symptom by name. [`SymptomKind::ALL`] is the order in which symptoms are listed: symptoms that make
/// others meaningless are first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum SymptomKind {
    /// Updates are skipped, because their gradients are not finite.
    SkippedUpdates,
    /// Samples have no reward: their functions time out or their servers fail.
    LostRewards,
    /// No sample of the run has had a reward other than 0.
    NoReward,
    /// The rollout's probabilities are not the actor's.
    RolloutMismatch,
    /// The mean reward has lost most of its gain.
    RewardCollapse,
    /// Most groups have equal rewards, which give no gradient.
    EqualRewards,
    /// The policy has nearly no entropy left while rewards can still be gained.
    EntropyCollapse,
    /// The policy is far from its reference, and gets further.
    KlRunaway,
    /// Completions reach the limit of their length.
    LengthExplosion,
    /// Steps take several times as long as they did.
    Slowdown,
}

impl SymptomKind {
    /// All kinds, in the order in which they are listed.
    pub const ALL: [Self; 10] = [
        Self::SkippedUpdates,
        Self::LostRewards,
        Self::NoReward,
        Self::RolloutMismatch,
        Self::RewardCollapse,
        Self::EqualRewards,
        Self::EntropyCollapse,
        Self::KlRunaway,
        Self::LengthExplosion,
        Self::Slowdown,
    ];

    /// The name, as in `docs/troubleshooting.md`.
    pub fn name(self) -> &'static str {
        match self {
            Self::SkippedUpdates => "SkippedUpdates",
            Self::LostRewards => "LostRewards",
            Self::NoReward => "NoReward",
            Self::RolloutMismatch => "RolloutMismatch",
            Self::RewardCollapse => "RewardCollapse",
            Self::EqualRewards => "EqualRewards",
            Self::EntropyCollapse => "EntropyCollapse",
            Self::KlRunaway => "KlRunaway",
            Self::LengthExplosion => "LengthExplosion",
            Self::Slowdown => "Slowdown",
        }
    }

    /// Returns the changes that a user can make, the most promising first. Fields are in backticks, as paths
    /// from `spec`.
    pub fn changes(self) -> &'static [&'static str] {
        match self {
            Self::SkippedUpdates => &[
                "lower `spec.training.optimizer.learningRate` or `spec.training.maxGradNorm`",
                "use another `spec.training.precision`: Fp16 overflows where Bf16 and Fp32 do not",
            ],
            Self::LostRewards => &[
                "see which status they have: reward/num_timeout and reward/num_infra in metrics.jsonl",
                "raise `spec.rewards.timeoutSeconds`, or give the reward servers more room",
            ],
            Self::NoReward => &[
                "compare answers in completions.jsonl with the form that `spec.rewards.functions` and its pattern expect",
                "raise `spec.rollout.maxCompletionTokens` where completions are cut off before their answer",
                "check the ground truths that `rlctl data` shows, and their column: `spec.data.groundTruthKey`",
                "start from a model that answers some prompts, or teach it the format: `spec.algorithm.coldStart`",
            ],
            Self::RolloutMismatch => &[
                "sample in the training's numbers: leave out `spec.rollout.precision`",
                "correct for it: `spec.algorithm.importanceCorrection`",
            ],
            Self::RewardCollapse => &[
                "go back to the best checkpoint: `rlctl export --step best` with `spec.checkpoint.keepBest`",
                "lower `spec.training.optimizer.learningRate`",
                "hold the policy near its reference: `spec.algorithm.kl.coefficient`",
            ],
            Self::EqualRewards => &[
                "use prompts that are sometimes answered well: neither always nor never",
                "sample groups without a difference anew: `spec.algorithm.dynamicSampling`",
                "raise `spec.rollout.samplesPerPrompt` or `spec.rollout.temperature`",
            ],
            Self::EntropyCollapse => &[
                "raise `spec.algorithm.loss.clipHigh` above clipLow (clip-higher), or `spec.rollout.temperature`",
                "reward entropy: `spec.algorithm.loss.entropyCoefficient`",
                "lower `spec.training.optimizer.learningRate`",
            ],
            Self::KlRunaway => &[
                "raise `spec.algorithm.kl.coefficient`, or let it follow a target: `spec.algorithm.kl.adaptive`",
                "lower `spec.training.optimizer.learningRate`",
                "read completions.jsonl: rewards may be earned in an unintended way (reward hacking)",
            ],
            Self::LengthExplosion => &[
                "charge for length: `spec.rewards.overlong`",
                "raise `spec.rollout.maxCompletionTokens` where answers need it",
                "weigh tokens and not completions: `spec.algorithm.loss.aggregation`",
            ],
            Self::Slowdown => &[
                "check the phase that grew: timing_s/* in metrics.jsonl, and `rlctl plan --run RUN`",
                "longer completions take longer: `spec.rollout.maxCompletionTokens`",
            ],
        }
    }
}

/// One symptom of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Symptom {
    /// Kind of the symptom.
    pub kind: SymptomKind,
    /// The evidence, as the rest of a sentence that begins with "this run".
    pub evidence: String,
}

#[cfg(test)]
mod tests;
