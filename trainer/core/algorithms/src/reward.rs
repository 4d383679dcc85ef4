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

pub mod code;
pub mod combine;
pub mod digits;
pub mod exact;
pub mod external;
mod finish;
pub mod format;
mod interface;
pub mod json_schema;
pub mod length;
mod math_answers;
pub mod overlong;
pub mod pattern;
mod settings;

use std::sync::Arc;

pub use combine::{Clip, Combiner, WeightedPart};
pub use digits::MatchingCharacters;
pub use exact::Exact;
pub use external::External;
pub use finish::FinishReason;
pub use format::Format;
pub use gsm8k::Gsm8k;
pub(crate) use interface::one_if;
#[cfg(test)]
pub(crate) use interface::sample;
pub use interface::{
    DeclaredReward, Given, NO_VERDICTS, RewardError, RewardFunction, RewardStatus, Sample, Verdict, Verdicts,
};
pub use json_schema::JsonSchema;
pub use length::LengthPenalty;
pub use math::Math;
pub use math_answers::{boxed, gsm8k, math, math_dapo, math_strict, truth};
pub use math_dapo::MathDapo;
pub use math_strict::MathStrict;
pub use overlong::Overlong;
pub use pattern::Pattern;
pub use settings::{Section, Setting, Settings, Values};
pub use truth::any_ground_truth;

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

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

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
}
