//! Penalties for long completions, whatever they say.

use super::{RewardError, RewardFunction, Sample};

/// 0 up to `free` tokens, falling linearly to -1 at `limit`, and -1 beyond.
#[derive(Clone, Copy, Debug)]
pub struct LengthPenalty {
    free: usize,
    limit: usize,
}

impl LengthPenalty {
    /// A penalty that starts after `free` tokens and is full at `limit`.
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
    fn it_is_free_then_linear_then_full() {
        assert_eq!([0, 10, 15, 20, 1000].map(penalty), [0.0, 0.0, -0.5, -1.0, -1.0]);
    }

    #[test]
    fn the_limit_lies_above_the_free_length() {
        assert!(matches!(LengthPenalty::new(5, 5), Err(RewardError::Setting { .. })));
    }
}
