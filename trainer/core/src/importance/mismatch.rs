//! Metrics of the mismatch between the rollout engine's policy and the trainer's, for every step.

use super::{ImportanceError, bounded_exp, check, max, min, row_means};
use crate::metrics::Metrics;
use crate::rows::Rows;
use crate::whiten::{mean, mean_where, std};

/// Returns verl's `rollout_corr/*` and `training/rollout_*` metrics of a batch: KL estimates, perplexities,
/// chi-square, and differences of probabilities. All of them are 0 (ratios and the correlation are 1) if the
/// policies agree.
///
/// Log-probs are natural, one per token; values of masked tokens are never read.
///
/// # Errors
/// When a slice does not match the rows or no token counts.
pub fn mismatch_metrics(
    rows: &Rows,
    old_logprobs: &[f64],
    rollout_logprobs: &[f64],
) -> Result<Metrics, ImportanceError> {
    check(rows, "old_logprobs", old_logprobs)?;
    check(rows, "rollout_logprobs", rollout_logprobs)?;
    let mut metrics = Metrics::new();
    perplexities(&mut metrics, rows, old_logprobs, rollout_logprobs);
    divergences(&mut metrics, rows, old_logprobs, rollout_logprobs);
    probabilities(&mut metrics, rows, old_logprobs, rollout_logprobs);
    Ok(metrics)
}

fn perplexities(metrics: &mut Metrics, rows: &Rows, old_logprobs: &[f64], rollout_logprobs: &[f64]) {
    let (old, rollout) = (row_means(rows, old_logprobs), row_means(rows, rollout_logprobs));
    let difference: Vec<f64> = rollout.iter().zip(&old).map(|(rollout, old)| rollout - old).collect();
    let map = |values: &[f64], f: fn(f64) -> f64| mean(&values.iter().map(|v| f(*v)).collect::<Vec<_>>());
    let values = [
        ("training_ppl", map(&old, |v| (-v).exp())),
        ("training_log_ppl", map(&old, |v| -v)),
        ("rollout_ppl", map(&rollout, |v| (-v).exp())),
        ("rollout_log_ppl", map(&rollout, |v| -v)),
        ("log_ppl_diff", mean(&difference)),
        ("log_ppl_abs_diff", map(&difference, f64::abs)),
        ("log_ppl_diff_max", max(difference.iter().copied())),
        ("log_ppl_diff_min", min(difference.iter().copied())),
        ("ppl_ratio", map(&difference, f64::exp)),
    ];
    metrics.extend(values.map(|(name, value)| (format!("rollout_corr/{name}"), value)));
}

fn divergences(metrics: &mut Metrics, rows: &Rows, old_logprobs: &[f64], rollout_logprobs: &[f64]) {
    let log_ratios: Vec<f64> = old_logprobs.iter().zip(rollout_logprobs).map(|(old, r)| old - r).collect();
    let token_mean = |f: fn(f64) -> f64| mean_where(rows.mask(), |token| f(log_ratios[token]));
    let sums = rows.masked_sums(&log_ratios);
    let squares: Vec<f64> = sums.iter().map(|sum| bounded_exp(*sum).powi(2)).collect();
    let values = [
        ("kl", token_mean(|x| -x)),
        ("k3_kl", token_mean(|x| x.exp() - x - 1.0)),
        ("chi2_token", token_mean(|x| bounded_exp(x).powi(2)) - 1.0),
        ("chi2_seq", mean(&squares) - 1.0),
    ];
    metrics.extend(values.map(|(name, value)| (format!("rollout_corr/{name}"), value)));
}

fn probabilities(metrics: &mut Metrics, rows: &Rows, old_logprobs: &[f64], rollout_logprobs: &[f64]) {
    let of = |logprobs: &[f64]| -> Vec<f64> {
        rows.valid(0..rows.num_tokens()).map(|token| logprobs[token].exp()).collect()
    };
    let (actor, rollout) = (of(old_logprobs), of(rollout_logprobs));
    let difference: Vec<f64> = actor.iter().zip(&rollout).map(|(a, r)| (a - r).abs()).collect();
    let log_difference = |token: usize| (old_logprobs[token] - rollout_logprobs[token]).abs();
    let values = [
        ("rollout_logprobs_diff_max", max(rows.valid(0..rows.num_tokens()).map(log_difference))),
        ("rollout_probs_diff_max", max(difference.iter().copied())),
        ("rollout_probs_diff_mean", mean(&difference)),
        ("rollout_probs_diff_std", std(&difference)),
        ("rollout_actor_probs_pearson_corr", correlation(&actor, &rollout)),
    ];
    metrics.extend(values.map(|(name, value)| (format!("training/{name}"), value)));
}

/// Returns Pearson's coefficient. If one side does not vary, it is 1 for equal and 0 for different
/// probabilities.
fn correlation(a: &[f64], b: &[f64]) -> f64 {
    let (mean_a, mean_b) = (mean(a), mean(b));
    let products = |x: &[f64], mean_x: f64, y: &[f64], mean_y: f64| -> f64 {
        x.iter().zip(y).map(|(x, y)| (x - mean_x) * (y - mean_y)).sum()
    };
    let spread = (products(a, mean_a, a, mean_a) * products(b, mean_b, b, mean_b)).sqrt();
    if spread == 0.0 { f64::from(u8::from(a == b)) } else { products(a, mean_a, b, mean_b) / spread }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_policies_do_not_differ() {
        let rows = Rows::from_masks([&[true, true][..], &[true, false]]);
        let logprobs = [-0.5, -1.0, -2.0, f64::NAN];
        let got = mismatch_metrics(&rows, &logprobs, &logprobs).unwrap();
        for name in ["kl", "k3_kl", "log_ppl_diff", "log_ppl_abs_diff", "chi2_seq"] {
            assert_eq!(got[&format!("rollout_corr/{name}")], 0.0, "{name}");
        }
        assert!(got["rollout_corr/chi2_token"].abs() < 1e-8, "1e-8 in the mean");
        assert_eq!(got["training/rollout_probs_diff_max"], 0.0);
        assert_eq!(got["training/rollout_logprobs_diff_max"], 0.0);
        assert!((got["training/rollout_actor_probs_pearson_corr"] - 1.0).abs() < 1e-12);
    }

    #[test]
    fn a_known_mismatch_has_known_metrics() {
        let rows = Rows::unmasked([2]);
        let [half, quarter] = [0.5_f64, 0.25].map(f64::ln);
        let got = mismatch_metrics(&rows, &[half, quarter], &[quarter, quarter]).unwrap();
        let close = |name: &str, expected: f64| {
            assert!((got[name] - expected).abs() < 1e-7, "{name}: {} instead of {expected}", got[name]);
        };
        close("rollout_corr/kl", -0.5 * 2.0_f64.ln());
        close("rollout_corr/k3_kl", 0.5 * (1.0 - 2.0_f64.ln()));
        close("rollout_corr/ppl_ratio", 0.5_f64.sqrt());
        close("rollout_corr/chi2_token", 1.5);
        close("rollout_corr/chi2_seq", 3.0);
        close("training/rollout_probs_diff_max", 0.25);
        close("training/rollout_logprobs_diff_max", 2.0_f64.ln());
        close("training/rollout_probs_diff_mean", 0.125);
    }
}
