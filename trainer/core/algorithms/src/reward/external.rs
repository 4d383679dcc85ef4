//! Reward functions whose values are external verdicts: of reward models, servers, sandboxes. The trainer
//! requests the verdicts.

use std::sync::Arc;

use super::{DeclaredReward, Given, RewardError, RewardFunction, Sample, Section, Verdict};

/// The external verdict under a function's name, which may be any number.
#[derive(Clone, Debug)]
pub struct External {
    name: String,
}

impl External {
    /// Makes the function that reads the verdicts under `name`.
    pub fn of(name: &str) -> Self {
        Self { name: name.to_owned() }
    }
}

/// Declares a kind of reward function with external verdicts.
macro_rules! external {
    ($name:ident, reads [$($section:expr),*], $doc:literal) => {
        #[doc = $doc]
        pub struct $name;

        impl DeclaredReward for $name {
            const NAME: &'static str = stringify!($name);
            const DOC: &'static str = $doc;
            const SECTIONS: &'static [Section] = &[$($section),*];

            fn build(given: &Given<'_>) -> Result<Arc<dyn RewardFunction>, RewardError> {
                Ok(Arc::new(External::of(given.name)))
            }
        }
    };
}

external!(
    Model,
    reads[Section::needed("model")],
    "What `model` says of prompt and completion: a trained reward model, any number."
);
external!(
    Server,
    reads[Section::needed("server")],
    "What a program behind `server` says, over the trainer's own protocol of batches (docs/rewards.md)."
);
external!(
    OpenRlhf,
    reads[Section::needed("server")],
    "What a reward server of OpenRLHF says: `POST` with `query`, `prompts` and `labels`, answered by \
     `rewards`."
);
external!(
    Python,
    reads [Section::needed("wasm"), Section::needed("python")],
    "What a function in Python says, run in the sandbox by the interpreter `wasm` (docs/rewards.md)."
);
external!(
    Wasm,
    reads[Section::needed("wasm")],
    "What a WebAssembly module says, run in a sandbox without access to anything (docs/rewards.md)."
);
external!(
    Judge,
    reads [Section::needed("server"), Section::needed("judge")],
    "What a language model behind an OpenAI-compatible `server` says, asked as `judge` says."
);

impl RewardFunction for External {
    fn score(&self, sample: &Sample<'_>) -> Result<f64, RewardError> {
        let Verdict { status, value, message } = self.judge(sample);
        if status.is_verdict() {
            return Ok(value);
        }
        Err(RewardError::NoVerdict { name: self.name.clone(), message: message.unwrap_or_default() })
    }

    fn judge(&self, sample: &Sample<'_>) -> Verdict {
        let verdict = sample.verdicts.get(&self.name).cloned();
        verdict.unwrap_or_else(|| Verdict::infra("the sample was never sent to be judged"))
    }

    fn range(&self) -> (f64, f64) {
        (f64::NEG_INFINITY, f64::INFINITY)
    }

    fn compares_with_ground_truth(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::super::{RewardStatus, Verdicts, sample};
    use super::*;

    #[test]
    fn only_the_verdict_of_the_same_name_counts() {
        let verdicts = Verdicts::from([
            ("taste".to_owned(), Verdict::ok(-2.5)),
            ("tests".to_owned(), Verdict::wrong(0.25, "3 of 4 fail")),
            ("server".to_owned(), Verdict::timeout("late")),
        ]);
        let sample = Sample { verdicts: &verdicts, ..sample("text", &serde_json::Value::Null) };
        assert_eq!(External::of("taste").score(&sample).unwrap(), -2.5);
        assert_eq!(External::of("tests").score(&sample).unwrap(), 0.25);
        assert_eq!(External::of("tests").judge(&sample).status, RewardStatus::Wrong);
        assert_eq!(External::of("server").judge(&sample), Verdict::timeout("late"));
        let error = External::of("server").score(&sample).unwrap_err();
        assert_eq!(error.to_string(), "judge by function \"server\": late");
        assert_eq!(External::of("tact").judge(&sample).status, RewardStatus::Infra);
    }
}
