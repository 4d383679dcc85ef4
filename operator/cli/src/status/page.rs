//! The state of one job as a page.

use std::fmt::Write as _;

use rlt_api::status::{Progress, TopologyStatus};

use super::summary::Summary;
use crate::measure::duration;

/// Width of the column of names, in characters.
const NAME_WIDTH: usize = 12;

pub(super) fn render(summary: &Summary) -> String {
    let since = summary.seconds_since(summary.since.as_deref()).map(duration);
    let since = since.map(|since| format!(" for {since}")).unwrap_or_default();
    let mut text = format!("{}: {}{since}\n", summary.key(), summary.state);
    if let (Some(reason), Some(message)) = (&summary.reason, &summary.message) {
        let _ = writeln!(text, "  {reason}: {message}");
    }
    text.push('\n');
    for (name, value) in lines(summary) {
        if let Some(value) = value {
            let _ = writeln!(text, "  {name:NAME_WIDTH$} {value}");
        }
    }
    if !matches!(&*summary.state, "Complete" | "Progressing") {
        let _ = writeln!(text, "\nrlctl why {} -n {} says more", summary.name, summary.namespace);
    }
    text
}

fn lines(summary: &Summary) -> Vec<(&'static str, Option<String>)> {
    let progress = summary.progress.as_ref();
    vec![
        ("step", progress.map(step)),
        ("reward", progress.and_then(reward)),
        ("KL", progress.and_then(|one| one.kl).map(|kl| format!("{kl:.4} nats a token"))),
        ("speed", progress.and_then(speed)),
        ("remaining", summary.remaining_seconds().map(duration)),
        ("workers", summary.ready.as_ref().map(|ready| format!("{ready} ready"))),
        ("placed", placed(summary)),
        ("attempt", summary.attempt.map(|attempt| self::attempt(summary, attempt))),
        ("trace", summary.trace_id.clone()),
        ("checkpoint", checkpoint(summary)),
        ("age", Some(duration(summary.age_seconds))),
    ]
}

fn step(progress: &Progress) -> String {
    let phase = progress.phase.as_ref().map(|phase| format!(", {phase}")).unwrap_or_default();
    format!("{} of {}{phase}", progress.step, progress.num_steps)
}

fn reward(progress: &Progress) -> Option<String> {
    let held_out = progress.held_out_reward.map(|reward| format!("held out {reward:.3}"));
    let parts: Vec<_> =
        progress.reward.map(|reward| format!("{reward:.3}")).into_iter().chain(held_out).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

fn speed(progress: &Progress) -> Option<String> {
    let speed = progress.tokens_per_second.map(|speed| format!("{speed:.0} tokens/s"));
    let goodput = progress.goodput.map(|goodput| format!("goodput {goodput:.2}"));
    let parts: Vec<_> = speed.into_iter().chain(goodput).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

fn attempt(summary: &Summary, attempt: u32) -> String {
    let ended = summary.failures_by_cause.iter().map(|(cause, count)| format!("{count} x {cause:?}"));
    let ended: Vec<_> = ended.collect();
    if ended.is_empty() { attempt.to_string() } else { format!("{attempt}; ended: {}", ended.join(", ")) }
}

/// Formats the domains of each topology label, with their number of workers.
fn placed(summary: &Summary) -> Option<String> {
    let of_label = |topology: &TopologyStatus| {
        let domains = topology.domains.iter().map(|domain| format!("{} {}", domain.name, domain.workers));
        format!("{}: {}", topology.label, domains.collect::<Vec<_>>().join(", "))
    };
    let labels: Vec<_> = summary.topology.iter().map(of_label).collect();
    (!labels.is_empty()).then(|| labels.join("; "))
}

fn checkpoint(summary: &Summary) -> Option<String> {
    let checkpoint = summary.checkpoint.as_ref()?;
    let age = summary.seconds_since(Some(&checkpoint.time)).map(duration).unwrap_or_default();
    Some(format!("step {}, {age} ago, {}", checkpoint.step, checkpoint.path))
}
