//! The state of several jobs as a table.

use super::summary::Summary;
use crate::measure::duration;

const COLUMNS: [&str; 10] =
    ["NAMESPACE", "NAME", "STATE", "READY", "STEP", "REWARD", "ATTEMPT", "AGE", "ETA", "CHECKPOINT"];
/// Text for an unknown value.
const UNKNOWN: &str = "-";

pub(super) fn render(summaries: &[Summary], with_namespace: bool) -> String {
    let mut layout = Layout::of(summaries, with_namespace);
    let header = layout.line(&COLUMNS.map(str::to_owned));
    summaries.iter().fold(header, |text, summary| text + &layout.row(summary))
}

/// Column widths, from the rows shown first; a wider cell widens the rows after it.
pub(super) struct Layout {
    widths: [usize; COLUMNS.len()],
    first: usize,
}

impl Layout {
    pub(super) fn of(summaries: &[Summary], with_namespace: bool) -> Self {
        let mut layout = Self { widths: COLUMNS.map(str::len), first: usize::from(!with_namespace) };
        summaries.iter().for_each(|summary| layout.widen(&cells(summary)));
        layout
    }

    pub(super) fn row(&mut self, summary: &Summary) -> String {
        let cells = cells(summary);
        self.widen(&cells);
        self.line(&cells)
    }

    fn widen(&mut self, cells: &[String; COLUMNS.len()]) {
        for (width, cell) in self.widths.iter_mut().zip(cells) {
            *width = (*width).max(cell.chars().count());
        }
    }

    fn line(&self, cells: &[String; COLUMNS.len()]) -> String {
        let padded = cells.iter().zip(self.widths).skip(self.first);
        let text: Vec<_> = padded.map(|(cell, width)| format!("{cell:width$}")).collect();
        format!("{}\n", text.join("  ").trim_end())
    }
}

fn cells(summary: &Summary) -> [String; COLUMNS.len()] {
    let progress = summary.progress.as_ref();
    let or_unknown = |text: Option<String>| text.unwrap_or_else(|| UNKNOWN.to_owned());
    let checkpoint = summary.checkpoint.as_ref().map(|checkpoint| {
        let age = summary.seconds_since(Some(&checkpoint.time)).map(duration).unwrap_or_default();
        format!("{} ({age} ago)", checkpoint.step)
    });
    [
        summary.namespace.clone(),
        summary.name.clone(),
        state(summary),
        or_unknown(summary.ready.clone()),
        or_unknown(progress.map(|progress| format!("{}/{}", progress.step, progress.num_steps))),
        or_unknown(progress.and_then(|progress| progress.reward).map(|reward| format!("{reward:.3}"))),
        or_unknown(summary.attempt.map(|attempt| attempt.to_string())),
        duration(summary.age_seconds),
        or_unknown(summary.remaining_seconds().map(duration)),
        or_unknown(checkpoint),
    ]
}

/// Formats the state, with its reason if something is wrong.
fn state(summary: &Summary) -> String {
    match (&*summary.state, &summary.reason) {
        ("Failed" | "Stalled" | "Reconciling", Some(reason)) => format!("{}: {reason}", summary.state),
        ("Suspended", Some(reason)) if reason != "Suspended" => format!("{}: {reason}", summary.state),
        _ => summary.state.clone(),
    }
}
