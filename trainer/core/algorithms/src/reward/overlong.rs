//! DAPO's soft overlong punishment: a linear penalty before the length limit of completions.

use super::RewardError;

/// Penalty `min(-(len - (max - buffer)) / buffer * factor, 0)` added to a sample's reward: 0 up to `max -
/// buffer` tokens, `-factor` at `max`, linear in between.
///
/// Source: DAPO (arXiv 2503.14476), equation 13; verl `workers/reward_manager/dapo.py`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Overlong {
    max_tokens: usize,
    buffer_tokens: usize,
    penalty_factor: f64,
}

impl Overlong {
    /// Makes a penalty that begins `buffer_tokens` before `max_tokens`, which is
    /// `rollout.maxCompletionTokens`.
    ///
    /// # Errors
    /// [`RewardError::Setting`] unless `0 < buffer_tokens <= max_tokens` and the factor is finite, not
    /// negative.
    pub fn new(max_tokens: usize, buffer_tokens: usize, penalty_factor: f64) -> Result<Self, RewardError> {
        let refused = |field, value, expected| {
            Err(RewardError::Setting { function: "overlong", field, value, expected })
        };
        if buffer_tokens == 0 || buffer_tokens > max_tokens {
            let value = format!("{buffer_tokens} of {max_tokens}");
            return refused("bufferTokens", value, "between 1 and rollout.maxCompletionTokens");
        }
        if !(penalty_factor >= 0.0 && penalty_factor.is_finite()) {
            return refused("penaltyFactor", penalty_factor.to_string(), "a finite number of at least 0");
        }
        Ok(Self { max_tokens, buffer_tokens, penalty_factor })
    }

    /// Returns the penalty for a completion of `num_tokens` tokens, in `[-penalty_factor, 0]` up to
    /// `max_tokens`.
    pub fn penalty(&self, num_tokens: usize) -> f64 {
        let free_tokens = self.max_tokens - self.buffer_tokens;
        let excess = num_tokens as f64 - free_tokens as f64;
        (-excess / self.buffer_tokens as f64 * self.penalty_factor).min(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_penalty_is_zero_before_the_buffer_and_the_factor_at_its_end() {
        let overlong = Overlong::new(100, 20, 2.0).unwrap();
        assert_eq!([0, 80, 90, 100].map(|n| overlong.penalty(n)), [0.0, 0.0, -1.0, -2.0]);
    }

    #[test]
    fn impossible_settings_are_refused() {
        for (max, buffer, factor) in [(10, 0, 1.0), (10, 11, 1.0), (10, 5, -1.0), (10, 5, f64::NAN)] {
            assert!(matches!(Overlong::new(max, buffer, factor), Err(RewardError::Setting { .. })));
        }
    }
}
