//! Tables of a report, and the figures in them.

use std::fmt;

/// A table with its title and columns.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    title: &'static str,
    columns: &'static str,
    rows: Vec<String>,
}

impl Table {
    pub(crate) fn new(title: &'static str, columns: &'static str) -> Self {
        Self { title, columns, rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells: Vec<_> = cells.into_iter().collect();
        self.rows.push(format!("| {} |", cells.join(" | ")));
    }
}

impl fmt::Display for Table {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.rows.is_empty() {
            return Ok(());
        }
        let rule = vec!["---"; self.columns.split('|').count()].join(" | ");
        writeln!(
            formatter,
            "\n## {}\n\n| {} |\n| {rule} |\n{}",
            self.title,
            self.columns,
            self.rows.join("\n")
        )
    }
}

/// Formats the median and the largest of some figures.
pub(crate) fn middle_and_worst(figures: impl Iterator<Item = f64>) -> String {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    match figures.last() {
        Some(worst) => format!("{:.0} / {worst:.0}", figures[(figures.len() - 1) / 2]),
        None => "-".to_owned(),
    }
}
