//! DAPO's dynamic sampling (arXiv 2503.14476): which rollout groups are kept for an update. Its clip,
//! aggregation and overlong punishment are parameters of [`crate::loss`] and [`crate::reward`].

/// Whether a rollout group is kept by dynamic sampling: its samples' metric differs, so its advantages do not
/// vanish; a group of one is kept because it has nothing to differ from (verl: std > 0 or size 1).
pub fn keeps_group(metric_values: &[f64]) -> bool {
    metric_values.len() == 1 || metric_values.windows(2).any(|pair| pair[0] != pair[1])
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
}
