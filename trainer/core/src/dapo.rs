//! What DAPO (arXiv 2503.14476) adds around the loss: dynamic sampling and the soft punishment of overlong
//! answers.

/// Whether a rollout group is kept by dynamic sampling: its samples' metric differs, so its advantages do not
/// vanish; a group of one is kept because it has nothing to differ from (verl: std > 0 or size 1).
pub fn keeps_group(metric_values: &[f64]) -> bool {
    metric_values.len() == 1 || metric_values.windows(2).any(|pair| pair[0] != pair[1])
}

/// Soft punishment of long completions: from `max_tokens - buffer_tokens` on the reward sinks linearly, to
/// -`penalty_factor` at `max_tokens`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OverlongShaping {
    /// Longest completion, in tokens.
    pub max_tokens: usize,
    /// Tokens before it in which the punishment grows, above 0.
    pub buffer_tokens: usize,
    /// Punishment at the end of the buffer.
    pub penalty_factor: f64,
}

impl OverlongShaping {
    /// What to add to the reward of a completion of this many tokens; never above 0.
    pub fn reward(&self, completion_len: usize) -> f64 {
        let allowed = self.max_tokens as f64 - self.buffer_tokens as f64;
        let exceeded = completion_len as f64 - allowed;
        (-exceeded / self.buffer_tokens as f64 * self.penalty_factor).min(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_with_a_signal_are_kept() {
        assert!(keeps_group(&[0.0, 0.0, 1.0]));
        assert!(!keeps_group(&[0.1, 0.1, 0.1]));
        assert!(keeps_group(&[0.0]));
        assert!(!keeps_group(&[]));
    }

    #[test]
    fn punishment_grows_over_the_buffer() {
        let shaping = OverlongShaping { max_tokens: 100, buffer_tokens: 20, penalty_factor: 0.5 };
        assert_eq!([0, 80, 90, 100].map(|len| shaping.reward(len)), [0.0, 0.0, -0.25, -0.5]);
    }
}
