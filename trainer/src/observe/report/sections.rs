//! Sections of the report: their plots, in order, and the metrics that each plot shows.

use std::collections::BTreeMap;

use super::plot::{Mark, Plot, Series, stack_heights};
use super::run::{Points, Run};
use crate::observe::tracking::Stage;

/// Phases of a step by verl's names, with their labels, in the order in which they run.
const PHASES: [(&str, &str); 11] = [
    ("gen", "rollout"),
    ("reward", "reward"),
    ("old_log_prob", "actor log-probs"),
    ("ref", "reference log-probs"),
    ("values", "values"),
    ("adv", "advantages"),
    ("update_critic", "critic update"),
    ("update_actor", "update"),
    ("update_weights", "weight sync"),
    ("testing", "evaluation"),
    ("save_checkpoint", "checkpoint"),
];

/// Labels of phases that may be within the measured time of a step or after it.
const AFTER_THE_STEP: [&str; 2] = ["evaluation", "checkpoint"];

/// A heading and its plots.
pub(super) struct Section {
    pub(super) title: &'static str,
    pub(super) plots: Vec<Plot>,
}

/// Returns all sections that have data.
pub(super) fn of_run(run: &Run) -> Vec<Section> {
    let sections = [
        Section {
            title: "Learning",
            plots: vec![reward(run), sft_loss(run), cold_start(run), learning_rate(run)],
        },
        Section { title: "Preferences", plots: preferences(run) },
        Section { title: "Policy", plots: policy(run) },
        Section { title: "Critic", plots: critic(run) },
        Section { title: "Completions", plots: completions(run) },
        Section { title: "Time and memory", plots: performance(run) },
    ];
    let shown = sections.into_iter().map(|section| {
        let mut plots: Vec<Plot> = section.plots.into_iter().filter(|plot| !plot.series.is_empty()).collect();
        fill_rows(&mut plots);
        Section { plots, ..section }
    });
    shown.filter(|section| !section.plots.is_empty()).collect()
}

/// Widens the last narrow plot if it would be alone in its row: two narrow plots share a row.
fn fill_rows(plots: &mut [Plot]) {
    let num_narrow = plots.iter().filter(|plot| !plot.wide).count();
    if let Some(last) = plots.iter_mut().rfind(|plot| !plot.wide).filter(|_| num_narrow % 2 == 1) {
        last.wide = true;
    }
}

fn series(label: &str, color: usize, points: Points) -> Series {
    Series { label: label.to_owned(), points, mark: Mark::Line, color }
}

fn reward(run: &Run) -> Plot {
    let mut all = vec![series("training", 0, run.training("critic/rewards/mean"))];
    let held_out = run.held_out_rewards();
    for (idx, (metric, source)) in held_out.iter().enumerate() {
        let label = match held_out.len() {
            1 => "held-out".to_owned(),
            _ => format!("held-out {source}"),
        };
        all.push(Series { label, points: run.training(metric), mark: Mark::Dots, color: idx + 1 });
    }
    Plot::new("Reward", "mean per completion", all).wide()
}

fn sft_loss(run: &Run) -> Plot {
    Plot::new(
        "Loss",
        "negative log-likelihood per token",
        vec![series("training", 0, run.training("sft/loss"))],
    )
    .wide()
}

fn cold_start(run: &Run) -> Plot {
    let points = run.points(Stage::ColdStart, "sft/loss");
    Plot::new("Cold start", "negative log-likelihood per token", vec![series("loss", 4, points)])
}

fn learning_rate(run: &Run) -> Plot {
    Plot::new("Learning rate", "per step", vec![series("rate", 0, run.training("actor/lr"))])
}

fn policy(run: &Run) -> Vec<Plot> {
    let single = |title, caption, label: &str, color, metric: &str| {
        Plot::new(title, caption, vec![series(label, color, run.training(metric))])
    };
    vec![
        kl(run),
        single("Entropy", "nats per token", "entropy", 2, "actor/entropy"),
        Plot::new(
            "Clip fraction",
            "share of tokens whose ratio was clipped",
            vec![
                series("clipped", 3, run.training("actor/pg_clipfrac")),
                series("dual clip", 5, unless_zero(run.training("actor/pg_clipfrac_lower"))),
            ],
        ),
        single("Gradient norm", "L2 over all parameters, before clipping", "norm", 0, "actor/grad_norm"),
        mismatch(run),
    ]
}

fn preferences(run: &Run) -> Vec<Plot> {
    let both = |metric: &str| {
        let held_out = run.training(&format!("val-core/{metric}"));
        vec![
            series("training", 0, run.training(metric)),
            Series { label: "held-out".into(), points: held_out, mark: Mark::Dots, color: 1 },
        ]
    };
    let each = |metric: &str| {
        let of = |side, color| series(side, color, run.training(&format!("{metric}/{side}")));
        vec![of("chosen", 0), of("rejected", 3)]
    };
    vec![
        Plot::new("Preference loss", "mean over pairs or completions", both("preference/loss")),
        Plot::new("Accuracy", "share of pairs in the right order", both("rewards/accuracies")),
        Plot::new("Rewards", "beta times the log-ratio of a completion", each("rewards")),
        Plot::new("Log-probs", "nats per completion", each("logps")),
    ]
}

fn critic(run: &Run) -> Vec<Plot> {
    let explained = series("explained", 1, run.training("critic/vf_explained_var"));
    vec![
        Plot::new(
            "Value loss",
            "half the squared error",
            vec![series("loss", 0, run.training("critic/vf_loss"))],
        ),
        Plot::new(
            "Explained variance",
            "share of the returns' variance that the critic foresaw",
            vec![explained],
        ),
    ]
}

/// Creates the plot of the KL divergence from the reference, or without a reference that of the update.
fn kl(run: &Run) -> Plot {
    let candidates = [
        ("KL to the reference", "actor/kl_loss"),
        ("KL to the reference", "actor/reward_kl_penalty"),
        ("KL of the update", "actor/ppo_kl"),
    ];
    let found = candidates.iter().map(|&(title, metric)| (title, run.training(metric)));
    let (title, points) = found.into_iter().find(|(_, points)| !points.is_empty()).unwrap_or_default();
    Plot::new(title, "nats per token", vec![series("KL", 1, points)])
}

fn mismatch(run: &Run) -> Plot {
    let log_probs = run.training("training/rollout_logprobs_diff_max");
    let probabilities = run.training("training/rollout_probs_diff_max");
    Plot::new(
        "Rollout against actor",
        "largest difference of any token",
        vec![series("log-prob", 5, log_probs), series("probability", 1, probabilities)],
    )
    .logarithmic()
}

fn completions(run: &Run) -> Vec<Plot> {
    let length = |statistic: &str| run.training(&format!("response_length/{statistic}"));
    vec![
        Plot::new(
            "Completion length",
            "tokens",
            vec![
                series("longest", 3, length("max")),
                series("mean", 0, length("mean")),
                series("shortest", 2, length("min")),
            ],
        ),
        Plot::new(
            "Cut off",
            "share of completions that reached the limit",
            vec![series("cut off", 1, length("clip_ratio"))],
        ),
    ]
}

fn performance(run: &Run) -> Vec<Plot> {
    let single = |title, caption, label: &str, color, metric: &str| {
        Plot::new(title, caption, vec![series(label, color, run.training(metric))])
    };
    vec![
        Plot::new("Time of a step", "seconds, by phase", phases(run)).wide(),
        single("Throughput", "tokens per second, prompts and completions", "tokens/s", 2, "perf/throughput"),
        Plot::new(
            "Memory",
            "GiB at the peak",
            vec![
                series("host", 0, run.training("perf/cpu_memory_used_gb")),
                series("device", 1, run.training("perf/max_memory_allocated_gb")),
            ],
        ),
    ]
}

/// Returns `points`, or no points if all values are zero.
fn unless_zero(points: Points) -> Points {
    if points.iter().all(|&(_, value)| value == 0.0) { Points::new() } else { points }
}

/// Returns one layer per phase and one for the rest of the step.
fn phases(run: &Run) -> Vec<Series> {
    let mut layers: Vec<Series> = PHASES
        .iter()
        .enumerate()
        .map(|(color, (phase, label))| Series {
            mark: Mark::Layer,
            ..series(label, color, run.training(&format!("timing_s/{phase}")))
        })
        .collect();
    let accounted = stack_heights(&layers);
    let within = stack_heights(layers.iter().filter(|layer| !AFTER_THE_STEP.contains(&&*layer.label)));
    let rest = |(step, seconds): (f64, f64)| {
        let of = |heights: &BTreeMap<u64, f64>| heights.get(&(step as u64)).copied().unwrap_or(0.0);
        // If all phases together exceed the measured time of the step, evaluation and checkpoint ran after
        // the step.
        let inner = if of(&accounted) > seconds { of(&within) } else { of(&accounted) };
        (step, (seconds - inner).max(0.0))
    };
    let rest = run.training("timing_s/step").into_iter().map(rest).collect();
    layers.push(Series { mark: Mark::Layer, ..series("other", PHASES.len(), rest) });
    // A phase that never takes visible time would only lengthen the legend.
    let total: f64 = layers.iter().flat_map(|layer| &layer.points).map(|(_, seconds)| seconds).sum();
    layers.retain(|layer| layer.points.iter().map(|(_, seconds)| seconds).sum::<f64>() > 0.002 * total);
    layers
}
