//! Headline of the report: the most important results of a run.

use serde_json::Value;

use super::html::{duration, escape, number};
use super::run::Run;
use crate::observe::tracking::Stage;

/// Renders the title, a sentence and a row of figures.
pub(super) fn render(run: &Run) -> String {
    let figures: String = figures(run)
        .into_iter()
        .map(|(label, value, note)| {
            let (label, note) = (escape(&label), escape(&note));
            format!("<div><dt>{label}</dt><dd>{value}<small>{note}</small></dd></div>")
        })
        .collect();
    let warnings: String = run
        .warnings
        .iter()
        .map(|warning| format!("<p class=\"warning\" role=\"alert\">This run {}</p>", escape(warning)))
        .collect();
    format!(
        "<header>{warnings}<p class=\"kind\">{kind}</p><h1>{name}</h1><p class=\"lede\">{lede}</p><dl>{figures}</dl></header>\n",
        kind = escape(&kind(run)),
        name = escape(&run.name),
        lede = escape(&lede(run)),
    )
}

/// Describes algorithm, model and adapter in a few words.
fn kind(run: &Run) -> String {
    let algorithm = run.setting("/spec/algorithm/kind").map(str::to_owned);
    let model = run.setting("/spec/model/hub/repo").or_else(|| run.setting("/spec/model/path"));
    let family = run.setting("/spec/model/architecture/family");
    let model = model.map(str::to_owned).or_else(|| Some(format!("{} from random weights", family?)));
    let adapter = run.manifest.pointer("/spec/model/lora/rank").and_then(Value::as_u64);
    let adapter = adapter.map(|rank| format!("LoRA rank {rank}"));
    let parts: Vec<String> = [algorithm, model, adapter].into_iter().flatten().collect();
    match parts.is_empty() {
        true => "Training run".into(),
        false => parts.join(" · "),
    }
}

/// Mean reward at the start and at the end of the run: on held-out prompts if there are any, else in
/// training.
struct Gain {
    held_out: bool,
    before: f64,
    after: f64,
}

fn gain(run: &Run) -> Option<Gain> {
    let held_out: Vec<_> = run.held_out_rewards().iter().map(|(name, _)| run.training(name)).collect();
    let ends: Vec<(f64, f64)> =
        held_out.iter().filter_map(|points| Some((points.first()?.1, points.last()?.1))).collect();
    if !ends.is_empty() {
        let mean = |of: fn(&(f64, f64)) -> f64| ends.iter().map(of).sum::<f64>() / ends.len() as f64;
        return Some(Gain { held_out: true, before: mean(|ends| ends.0), after: mean(|ends| ends.1) });
    }
    let training = run.training("critic/rewards/mean");
    Some(Gain { held_out: false, before: training.first()?.1, after: training.last()?.1 })
}

fn lede(run: &Run) -> String {
    let num_steps = run.num_steps(Stage::Training);
    let steps = match num_steps {
        1 => "one step".to_owned(),
        num_steps => format!("{num_steps} steps"),
    };
    let Some(Gain { held_out, before, after }) = gain(run) else {
        return match run.steps.is_empty() {
            true => "No step is finished yet.".into(),
            false => format!("{steps} of training so far."),
        };
    };
    let what = if held_out { "on held-out problems" } else { "in training" };
    if num_steps == 0 {
        return format!("Before the first step the mean reward {what} is {}.", number(after));
    }
    let moved = match after - before {
        gain if gain > 0.0 => "rose",
        gain if gain < 0.0 => "fell",
        _ => "stayed",
    };
    let (from, to) = (number(before), number(after));
    let path =
        if moved == "stayed" { format!("stayed at {to}") } else { format!("{moved} from {from} to {to}") };
    let factor = if before > 0.0 && after >= 1.5 * before {
        format!(", {} times what it was", number((after / before * 10.0).round() / 10.0))
    } else {
        String::new()
    };
    format!("After {steps} the mean reward {what} {path}{factor}.")
}

/// Returns label, value (as HTML) and note of each figure.
fn figures(run: &Run) -> Vec<(String, String, String)> {
    let mut figures = Vec::new();
    if let Some(Gain { held_out, before, after }) = gain(run) {
        let label = if held_out { "Held-out reward" } else { "Training reward" };
        let value = format!("<span class=\"before\">{} →</span> {}", number(before), number(after));
        figures.push((label.into(), value, "before and after".into()));
    }
    let cold_start = match run.num_steps(Stage::ColdStart) {
        0 => String::new(),
        num_steps => format!("after {num_steps} of cold start"),
    };
    figures.push(("Steps".into(), run.num_steps(Stage::Training).to_string(), cold_start));
    let seconds = run.seconds;
    if seconds > 0.0 {
        figures.push(("Time in steps".into(), duration(seconds), String::new()));
    }
    let throughput = run.training("perf/throughput");
    if !throughput.is_empty() {
        let mean = throughput.iter().map(|&(_, rate)| rate).sum::<f64>() / throughput.len() as f64;
        figures.push(("Throughput".into(), number(mean), "tokens per second".into()));
    }
    if let Some((first, rest)) = run.hardware.split_first() {
        figures.push(("Hardware".into(), escape(first), rest.join(" · ")));
    }
    figures
}
