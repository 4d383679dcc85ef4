//! Penalties for long completions, independent of their content.

use std::sync::Arc;

use super::{DeclaredReward, Given, RewardError, RewardFunction, Sample, Setting, Values};

/// Penalty of -1 to 0: 0 up to `free` tokens, then falling linearly to -1 at `limit` and beyond.
#[derive(Clone, Copy, Debug)]
pub struct LengthPenalty {
    free: usize,
    limit: usize,
}

impl LengthPenalty {
    /// Makes a penalty that starts after `free` tokens and is full at `limit`.
    ///
    /// # Errors
    /// [`RewardError::Setting`] unless `free < limit`.
    pub fn new(free: usize, limit: usize) -> Result<Self, RewardError> {
        if free >= limit {
            let value = format!("{limit} with {free} free");
            let expected = "more than the free length";
            return Err(RewardError::Setting { function: "length", field: "limit", value, expected });
        }
        Ok(Self { free, limit })
    }
}

/// Setting `targetTokens` of manifests.
pub const TARGET_TOKENS: Setting = Setting {
    name: "targetTokens",
    doc: "Completion length in tokens up to which `Length` takes nothing away.",
    values: Values::Integer { max: 16_777_216 },
};

impl DeclaredReward for LengthPenalty {
    const NAME: &'static str = "Length";
    const DOC: &'static str =
        "0 up to `targetTokens`, then falling linearly to -1 at `rollout.maxCompletionTokens`.";
    const SETTINGS: &'static [&'static Setting] = &[&TARGET_TOKENS];

    fn build(given: &Given<'_>) -> Result<Arc<dyn RewardFunction>, RewardError> {
        let free = given.settings.integer(&TARGET_TOKENS)? as usize;
        Ok(Arc::new(Self::new(free, given.max_completion_tokens)?))
    }
}

impl RewardFunction for LengthPenalty {
    fn score(&self, sample: &Sample<'_>) -> Result<f64, RewardError> {
        let excess = sample.num_tokens.saturating_sub(self.free) as f64;
        Ok(-(excess / (self.limit - self.free) as f64).min(1.0))
    }

    fn range(&self) -> (f64, f64) {
        (-1.0, 0.0)
    }

    fn compares_with_ground_truth(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::NO_VERDICTS;
    use super::*;

    fn penalty(num_tokens: usize) -> f64 {
        let (ground_truth, extra_info) = (&Value::Null, &Value::Null);
        let sample = Sample {
            prompt: "",
            completion: "",
            num_tokens,
            ground_truth,
            extra_info,
            verdicts: &NO_VERDICTS,
        };
        LengthPenalty::new(10, 20).unwrap().score(&sample).unwrap()
    }

    #[test]
    fn the_penalty_is_zero_then_linear_then_full() {
        assert_eq!([0, 10, 15, 20, 1000].map(penalty), [0.0, 0.0, -0.5, -1.0, -1.0]);
    }

    #[test]
    fn the_limit_is_above_the_free_length() {
        assert!(matches!(LengthPenalty::new(5, 5), Err(RewardError::Setting { .. })));
    }
}
