//! A step's metrics as one short line.

use std::time::Duration;

use crate::observe::tracking::{Stage, StepMetrics};

/// Metrics shown for every step of the training, in this order, with their labels; missing ones are left out.
const TRAINING: [(&str, &str); 7] = [
    ("critic/rewards/mean", "reward"),
    ("preference/loss", "loss"),
    ("rewards/accuracies", "accuracy"),
    ("actor/kl_loss", "kl"),
    ("actor/entropy", "entropy"),
    ("response_length/mean", "length"),
    ("actor/grad_norm", "grad norm"),
];

/// Summarizes a step: `reward 0.412, held-out 0.390, kl 0.0031, ..`.
pub(super) fn of_step(metrics: &StepMetrics) -> String {
    let values = &metrics.values;
    let named = |name: &str, label: &str| Some(format!("{label} {}", number(*values.get(name)?)));
    let mut parts: Vec<String> = Vec::new();
    match metrics.stage {
        Stage::ColdStart => parts.extend(named("sft/loss", "loss")),
        Stage::Training => {
            parts.extend(named(TRAINING[0].0, TRAINING[0].1));
            parts.extend(held_out(metrics).map(|reward| format!("held-out {}", number(reward))));
            parts.extend(TRAINING[1..].iter().filter_map(|(name, label)| named(name, label)));
            parts.extend(named("sft/loss", "loss"));
        }
    }
    parts.extend(values.get("perf/throughput").map(|&rate| tokens_per_second(rate)));
    parts.extend(values.get("timing_s/step").map(|&seconds| format!("{seconds:.1} s")));
    parts.join(", ")
}

/// Returns the mean of all held-out rewards of a step; `None` for a step without evaluation.
fn held_out(metrics: &StepMetrics) -> Option<f64> {
    let rewards: Vec<f64> = metrics
        .values
        .iter()
        .filter(|(name, _)| name.starts_with("val-core/") && name.contains("/reward/mean@"))
        .map(|(_, &value)| value)
        .collect();
    (!rewards.is_empty()).then(|| rewards.iter().sum::<f64>() / rewards.len() as f64)
}

pub(super) fn tokens_per_second(rate: f64) -> String {
    match rate {
        rate if rate >= 10_000.0 => format!("{:.1}k tok/s", rate / 1000.0),
        rate => format!("{rate:.0} tok/s"),
    }
}

/// Formats a number with about three significant digits.
fn number(value: f64) -> String {
    let magnitude = value.abs();
    match magnitude {
        0.0 => "0".into(),
        _ if magnitude < 1e-4 => format!("{value:.1e}"),
        _ if magnitude < 0.1 => format!("{value:.4}"),
        _ if magnitude < 10.0 => format!("{value:.3}"),
        _ => format!("{value:.1}"),
    }
}

/// Formats a duration: `45s`, `3m05s`, `2h07m`.
pub(super) fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds}s"),
        (0, minutes, seconds) => format!("{minutes}m{seconds:02}s"),
        (hours, minutes, _) => format!("{hours}h{minutes:02}m"),
    }
}
