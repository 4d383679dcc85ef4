//! Rule of the figures about public scripts that `rlctl convert` reads: the documentation has those of the
//! newest report, which `cargo bench --package rlt-convert` prints.

use std::collections::BTreeMap;
use std::fs;

use regex::Regex;
use rlt_rules::workspace_root;

use super::docs::pages;

/// Folder of the reports, whose file names end with the date.
const REPORTS: &str = "operator/convert/reports";
/// Page with the figures of each project.
const PAGE: &str = "docs/from-verl.md";
/// Rows of the page's table, each with the rows of the report that it sums.
const ROWS: [(&str, &[&str]); 4] = [
    ("verl (`examples`)", &["verl"]),
    ("TRL (commands in `trl` and `examples`)", &["trl", "trl-examples"]),
    ("TRL (blocks of its page on papers)", &["trl-papers"]),
    ("open-instruct (`scripts`)", &["open-instruct"]),
];

/// Numbers of a project's scripts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Figures {
    scripts: u64,
    /// Scripts that start a supported trainer.
    launching: u64,
    /// Scripts whose manifest is valid.
    valid: u64,
}

impl Figures {
    fn sum(all: impl Iterator<Item = Self>) -> Self {
        all.fold(Self::default(), |sum, figures| Self {
            scripts: sum.scripts + figures.scripts,
            launching: sum.launching + figures.launching,
            valid: sum.valid + figures.valid,
        })
    }
}

/// A report of the benchmark of scripts.
struct Report {
    name: String,
    text: String,
}

fn newest_report() -> Report {
    let folder = workspace_root().join(REPORTS);
    let names = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let reports = names.filter(|name| name.starts_with("scripts_") && name.ends_with(".md"));
    let name = reports.max().unwrap();
    Report { text: fs::read_to_string(folder.join(&name)).unwrap(), name }
}

/// Parses the figures in a text's tables, by the name in the first column. The next three columns are
/// numbers.
fn figures(text: &str) -> BTreeMap<String, Figures> {
    let rows = text.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    let mut figures = BTreeMap::new();
    for row in rows {
        let cells: Vec<&str> = row.split(" | ").map(str::trim).collect();
        let numbers: Vec<u64> = cells.iter().skip(1).map_while(|cell| cell.parse().ok()).collect();
        if numbers.len() >= 3 {
            let row = Figures { scripts: numbers[0], launching: numbers[1], valid: numbers[2] };
            figures.insert(cells[0].to_owned(), row);
        }
    }
    figures
}

/// Returns the lines of a page about public scripts. Lines of the changelog about earlier releases are left
/// out.
fn lines_about_scripts(page: &str) -> Vec<&str> {
    let current = page.match_indices("\n## [").nth(1).map_or(page, |(end, _)| &page[..end]);
    current.lines().filter(|line| line.contains("public scripts")).collect()
}

#[test]
fn documents_have_the_figures_of_the_newest_report() {
    let Report { name, text } = newest_report();
    let reported = figures(&text);
    let pages = pages();
    let shown = figures(&pages[PAGE]);
    for (row, projects) in ROWS {
        let expected = Figures::sum(projects.iter().map(|project| reported[*project]));
        assert_eq!(shown.get(row), Some(&expected), "{PAGE}: `{row}` differs from {REPORTS}/{name}");
    }
    let num_shown: usize = ROWS.iter().map(|(_, projects)| projects.len()).sum();
    assert_eq!(num_shown, reported.len(), "{REPORTS}/{name} has a project that {PAGE} does not show");
    assert!(pages[PAGE].contains(&name), "{PAGE} does not name the newest report, {REPORTS}/{name}");

    let total = Figures::sum(reported.values().copied());
    let totals = [total.scripts, total.launching, total.valid].map(|number| number.to_string());
    let number = Regex::new(r"\d+").unwrap();
    let mut num_figures = 0;
    for (path, page) in &pages {
        for line in lines_about_scripts(page) {
            for figure in number.find_iter(line) {
                num_figures += 1;
                let is_total = totals.iter().any(|total| total == figure.as_str());
                assert!(is_total, "{path}: {figure:?} of `{line}` is not in {REPORTS}/{name}: {total:?}");
            }
        }
    }
    assert!(num_figures >= 2, "no page has a figure about public scripts");
}

#[test]
fn a_report_says_in_words_what_its_table_says() {
    let Report { name, text } = newest_report();
    let total = Figures::sum(figures(&text).into_values());
    let sentence = Regex::new(r"(\d+) of the (\d+) that start a trainer are valid, (\d+) %").unwrap();
    for words in sentence.captures_iter(&text) {
        let numbers = [1usize, 2, 3].map(|group| words[group].parse::<u64>().unwrap());
        let percent = (100 * total.valid + total.launching / 2) / total.launching;
        assert_eq!(numbers, [total.valid, total.launching, percent], "{REPORTS}/{name}");
    }
}

#[test]
fn rows_with_figures_are_found_among_others() {
    let text = "| project | scripts | start | valid |\n| --- | --- | --- | --- |\n\
                | a (`b`) | 3 | 2 | 1 | 0 |\n| c | 3 | x | 1 |\n| d | 30 | 20 | 10 |\n";
    let found = figures(text);
    assert_eq!(found.keys().map(String::as_str).collect::<Vec<_>>(), ["a (`b`)", "d"]);
    let sum = Figures::sum(found.into_values());
    assert_eq!(sum, Figures { scripts: 33, launching: 22, valid: 11 });
    let changes = "# C\n\n## [Unreleased]\n1 public scripts\n\n## [0.1.0]\n2 public scripts\n";
    assert_eq!(lines_about_scripts(changes), ["1 public scripts"]);
}
