//! The interface of reward functions: the traits that they implement, the samples and settings that they
//! get, and the verdicts and errors that they return.

mod error;
mod verdict;

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::Value;

pub use error::RewardError;
pub use verdict::{NO_VERDICTS, RewardStatus, Verdict, Verdicts};

use super::truth::check_comparable;
use super::{Section, Setting, Settings};

/// The declaration of a reward function.
pub trait DeclaredReward {
    /// Name of the function in manifests.
    const NAME: &'static str;
    /// Documentation of the function. The first paragraph is the description in the CRD.
    const DOC: &'static str;
    /// Settings that the function needs.
    const SETTINGS: &'static [&'static Setting] = &[];
    /// Sections of a manifest that the function reads.
    const SECTIONS: &'static [Section] = &[];

    /// Builds the function from a manifest's settings.
    ///
    /// # Errors
    /// [`RewardError`] for settings that are missing or invalid.
    fn build(given: &Given<'_>) -> Result<Arc<dyn RewardFunction>, RewardError>;
}

/// A manifest's settings of a reward function.
#[derive(Clone, Copy, Debug)]
pub struct Given<'a> {
    /// Name of the function.
    pub name: &'a str,
    /// Settings of the function.
    pub settings: &'a Settings,
    /// Token limit of completions, `rollout.maxCompletionTokens`.
    pub max_completion_tokens: usize,
}

/// A sample that a reward function values, with its row.
#[derive(Clone, Copy, Debug)]
pub struct Sample<'a> {
    /// Text of the prompt after the chat template.
    pub prompt: &'a str,
    /// Text of the completion without special tokens.
    pub completion: &'a str,
    /// Number of tokens in the completion, the ending token included.
    pub num_tokens: usize,
    /// Ground truth of the row, `reward_model.ground_truth`.
    pub ground_truth: &'a Value,
    /// The row's `extra_info`.
    pub extra_info: &'a Value,
    /// Verdicts of reward models, servers and sandboxes on the sample, by the function's name.
    pub verdicts: &'a Verdicts,
}

/// A function that values one completion.
pub trait RewardFunction: Send + Sync {
    /// Returns the unweighted value of the sample, within [`RewardFunction::range`].
    ///
    /// # Errors
    /// When the row lacks the function's inputs; never because the completion is wrong.
    fn score(&self, sample: &Sample<'_>) -> Result<f64, RewardError>;

    /// Returns the value with its status: by default that of [`RewardFunction::score`], and no verdict if it
    /// fails.
    fn judge(&self, sample: &Sample<'_>) -> Verdict {
        match self.score(sample) {
            Ok(value) => Verdict::ok(value),
            Err(error) => Verdict::infra(error.to_string()),
        }
    }

    /// The lowest and the highest value that [`RewardFunction::score`] returns.
    fn range(&self) -> (f64, f64);

    /// Whether the function compares completions with the row's ground truth, which every row must then have.
    fn compares_with_ground_truth(&self) -> bool {
        true
    }

    /// Checks that rows with this ground truth can be judged; called for every row before training starts.
    ///
    /// # Errors
    /// The error that [`RewardFunction::score`] would return.
    fn check_ground_truth(&self, ground_truth: &Value) -> Result<(), RewardError> {
        if self.compares_with_ground_truth() { check_comparable(ground_truth) } else { Ok(()) }
    }

    /// Extracts the completion's answer, normalised so that equal answers are equal text: samples of a prompt
    /// vote with it. `None` if the completion has no answer, and always for functions without answers.
    fn answer<'a>(&self, _completion: &'a str) -> Option<Cow<'a, str>> {
        None
    }
}

/// Returns 1 if the condition holds, else 0.
pub(crate) fn one_if(condition: bool) -> f64 {
    if condition { 1.0 } else { 0.0 }
}

#[cfg(test)]
pub(crate) fn sample<'a>(completion: &'a str, ground_truth: &'a Value) -> Sample<'a> {
    Sample {
        prompt: "",
        completion,
        num_tokens: completion.len(),
        ground_truth,
        extra_info: &Value::Null,
        verdicts: &NO_VERDICTS,
    }
}
