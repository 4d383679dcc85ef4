//! Penalties for long completions, whatever they say.

use super::{RewardError, RewardFunction, Sample};

/// What a completion's length is counted in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LengthUnit {
    /// Tokens, the ending token included.
    #[default]
    Tokens,
    /// Unicode scalar values of the text.
    Characters,
}

/// 0 up to `free`, falling linearly to -1 at `limit`, and -1 beyond.
#[derive(Clone, Copy, Debug)]
pub struct LengthPenalty {
    free: usize,
    limit: usize,
    unit: LengthUnit,
}

impl LengthPenalty {
    /// A penalty that starts after `free` and is full at `limit`, both in `unit`.
    ///
    /// # Errors
    /// [`RewardError::Setting`] unless `free < limit`.
    pub fn new(free: usize, limit: usize, unit: LengthUnit) -> Result<Self, RewardError> {
        if free >= limit {
            let value = format!("{limit} with {free} free");
            let expected = "more than the free length";
            return Err(RewardError::Setting { function: "length", field: "limit", value, expected });
        }
        Ok(Self { free, limit, unit })
    }
}

impl RewardFunction for LengthPenalty {
    fn score(&self, sample: &Sample<'_>) -> Result<f64, RewardError> {
        let length = match self.unit {
            LengthUnit::Tokens => sample.num_tokens,
            LengthUnit::Characters => sample.completion.chars().count(),
        };
        let excess = length.saturating_sub(self.free) as f64;
        Ok(-(excess / (self.limit - self.free) as f64).min(1.0))
    }

    fn range(&self) -> (f64, f64) {
        (-1.0, 0.0)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn penalty(unit: LengthUnit, num_tokens: usize, completion: &str) -> f64 {
        let (ground_truth, extra_info) = (&Value::Null, &Value::Null);
        let sample = Sample { prompt: "", completion, num_tokens, ground_truth, extra_info };
        LengthPenalty::new(10, 20, unit).unwrap().score(&sample).unwrap()
    }

    #[test]
    fn it_is_free_then_linear_then_full() {
        let at = |n| penalty(LengthUnit::Tokens, n, "");
        assert_eq!([0, 10, 15, 20, 1000].map(at), [0.0, 0.0, -0.5, -1.0, -1.0]);
    }

    #[test]
    fn characters_are_counted_and_not_bytes() {
        assert_eq!(penalty(LengthUnit::Characters, 1000, &"é".repeat(15)), -0.5);
    }

    #[test]
    fn the_limit_lies_above_the_free_length() {
        assert!(matches!(LengthPenalty::new(5, 5, LengthUnit::Tokens), Err(RewardError::Setting { .. })));
    }
}
