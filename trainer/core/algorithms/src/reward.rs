//! Verifiable rewards: pure functions of one sample, each with a value in a documented range.
//!
//! A file has a function and its declaration ([`DeclaredReward`]): its name in manifests, its documentation,
//! the settings that it needs, and its constructor. One line of the list below registers it; the enum, fields
//! and rules of the custom resource, the field reference, and resolution are generated from that.
//!
//! ```text
//! Sample -> RewardFunction::judge (one per function) -> combine (weights, clip, overlong) -> Reward
//! ```
//! Nothing here uses threads, clocks or time limits: the trainer's reward pool runs these functions with time
//! limits.

#[macro_use]
mod registry;

pub mod boxed;
pub mod code;
pub mod combine;
pub mod digits;
pub mod exact;
pub mod external;
mod finish;
pub mod format;
pub mod gsm8k;
pub mod json_schema;
pub mod length;
pub mod math;
pub mod math_dapo;
pub mod math_strict;
pub mod overlong;
pub mod pattern;
mod settings;
mod status;
pub mod truth;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

pub use combine::{Clip, Combiner, WeightedPart};
pub use digits::MatchingCharacters;
pub use exact::Exact;
pub use external::{External, Verdict, Verdicts};
pub use finish::FinishReason;
pub use format::Format;
pub use gsm8k::Gsm8k;
pub use json_schema::JsonSchema;
pub use length::LengthPenalty;
pub use math::Math;
pub use math_dapo::MathDapo;
pub use math_strict::MathStrict;
pub use overlong::Overlong;
pub use pattern::Pattern;
pub use settings::{Section, Setting, Settings, Values};
pub use status::RewardStatus;

register_rewards! {
    Exact: exact::Exact,
    MatchingCharacters: digits::MatchingCharacters,
    Gsm8k: gsm8k::Strict,
    Gsm8kFlexible: gsm8k::Flexible,
    Math: math::Math,
    MathStrict: math_strict::MathStrict,
    MathDapo: math_dapo::MathDapo,
    Regex: pattern::Pattern,
    Format: format::Format,
    JsonSchema: json_schema::JsonSchema,
    Length: length::LengthPenalty,
    Model: external::Model,
    Server: external::Server,
    OpenRlhf: external::OpenRlhf,
    Code: code::Code,
    Python: external::Python,
    Wasm: external::Wasm,
    Judge: external::Judge,
}

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

/// Empty verdicts, for samples without external reward functions.
pub static NO_VERDICTS: Verdicts = BTreeMap::new();

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

/// An error in building or calling a reward function.
#[derive(Debug, thiserror::Error)]
pub enum RewardError {
    /// The pattern is not a regular expression, or is too large.
    #[error("compile pattern {pattern:?}: expected a regular expression")]
    Pattern {
        /// Pattern in the manifest.
        pattern: String,
        /// Error of the parser.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A pattern with look-around or back-references took too many steps on a text.
    #[error("match a pattern with look-around or back-references: {message}")]
    Backtracking {
        /// Message of the regex engine.
        message: String,
    },
    /// The document is not a JSON schema.
    #[error("compile a JSON schema: {message}")]
    Schema {
        /// Message of the validator.
        message: String,
    },
    /// A setting that the function needs is missing.
    #[error("expected {field}")]
    MissingSetting {
        /// Field of the setting in the manifest.
        field: &'static str,
    },
    /// A numeric setting is outside its range.
    #[error("configure the {function} reward: {field} is {value}, expected {expected}")]
    Setting {
        /// Name of the function.
        function: &'static str,
        /// Name of the setting.
        field: &'static str,
        /// Value that was given.
        value: String,
        /// Allowed values, in words.
        expected: &'static str,
    },
    /// There is no external verdict on the sample.
    #[error("judge by function {name:?}: {message}")]
    NoVerdict {
        /// Name of the function.
        name: String,
        /// Reason that there is no verdict.
        message: String,
    },
    /// The row has no valid unit tests.
    #[error("read the tests in the ground truth: {message}")]
    Tests {
        /// Message of the parser of tests.
        message: String,
    },
    /// The row has no usable ground truth.
    #[error("read the ground truth: expected a string, a number, a boolean or a list of them, got {got}")]
    GroundTruth {
        /// Ground truth as JSON, shortened.
        got: String,
    },
}

/// Whether `matches` accepts a ground truth, or any element of a list of them. A number or a boolean has
/// several texts, such as 72 and 72.0.
///
/// # Errors
/// [`RewardError::GroundTruth`] for null, an object, an empty list or a list that contains one of these, and
/// for an integer that was read as a float and may have lost digits.
pub fn any_ground_truth(value: &Value, mut matches: impl FnMut(&str) -> bool) -> Result<bool, RewardError> {
    let values = match value {
        Value::Array(values) if !values.is_empty() => values.as_slice(),
        scalar => std::slice::from_ref(scalar),
    };
    values.iter().try_fold(false, |found, value| match value {
        Value::String(text) => Ok(matches(text) || found),
        Value::Number(number) => {
            Ok(truth::texts_of_number(number)?.iter().fold(found, |found, text| matches(text) || found))
        }
        Value::Bool(true) => {
            Ok(["true", "True"].into_iter().fold(found, |found, text| matches(text) || found))
        }
        Value::Bool(false) => {
            Ok(["false", "False"].into_iter().fold(found, |found, text| matches(text) || found))
        }
        Value::Null | Value::Array(_) | Value::Object(_) => {
            Err(RewardError::GroundTruth { got: value.to_string().chars().take(80).collect() })
        }
    })
}

/// Checks that completions can be compared with this ground truth.
fn check_comparable(value: &Value) -> Result<(), RewardError> {
    any_ground_truth(value, |_| false).map(drop)
}

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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn answers_that_are_the_same_are_the_same_text() {
        let answers = |function: &dyn RewardFunction, texts: [&str; 3]| {
            texts.map(|text| function.answer(text).map(Cow::into_owned))
        };
        let same = |answers: [Option<String>; 3]| {
            let [first, second, none] = answers;
            assert!(first.is_some() && first == second && none.is_none(), "{first:?} {second:?} {none:?}");
        };
        same(answers(&Math, ["\\boxed{\\frac{1}{2}}", "so \\fbox{1/2}", "1/2"]));
        same(answers(&Gsm8k { flexible: true }, ["it is 1,000.", "1000", "none"]));
        same(answers(&Gsm8k::default(), ["#### 1,000", "#### 5 #### 1000", "1000"]));
        same(answers(&Pattern::new("=(.*)").unwrap(), ["= 7", "=1\n=7 ", "7"]));
        assert_eq!(Exact.answer(" 7 ").as_deref(), Some("7"));
        assert_eq!(Format::matching("7").unwrap().answer("7"), None);
    }

    #[test]
    fn numbers_and_lists_are_ground_truths() {
        let holds = |value, text: &str| any_ground_truth(&value, |truth| truth == text).unwrap();
        assert!(holds(json!(18), "18") && holds(json!(["a", 2.5]), "2.5") && holds(json!(["a", 2.5]), "a"));
        assert!(!holds(json!("18"), "8"));
        // A column of integers with missing values is one of floats.
        assert!(holds(json!(72.0), "72") && holds(json!(72.0), "72.0") && holds(json!([-3.0]), "-3"));
        assert!(!holds(json!("72.0"), "72") && !holds(json!(2.5), "2"));
        assert!(holds(json!(true), "True") && holds(json!(false), "false") && !holds(json!(true), "False"));
    }

    #[test]
    fn an_integer_that_may_have_lost_digits_is_no_ground_truth() {
        let truth: Value = serde_json::from_str("123456789012345678901234567890").unwrap();
        let error = check_comparable(&truth).unwrap_err();
        assert!(error.to_string().contains("write it as a text"), "{error}");
        assert!(
            check_comparable(&json!(u64::MAX)).is_ok() && check_comparable(&json!(2.0_f64.powi(53))).is_ok()
        );
    }

    #[test]
    fn a_missing_ground_truth_is_an_error_and_never_a_match() {
        for value in [json!(null), json!({}), json!([]), json!([null]), json!([[1]]), json!(["a", null])] {
            assert!(matches!(check_comparable(&value), Err(RewardError::GroundTruth { .. })), "{value}");
        }
    }
}
