//! Rule of the documentation's promises: each names the tests that verify it, and these tests exist.

use std::collections::BTreeSet;
use std::fs;

use rlt_rules::{rust_sources, workspace_root};

/// Pages with a table of promises.
const PAGES: [&str; 2] = ["docs/failure.md", "docs/security.md"];
/// Heading of the section with the table.
const HEADING: &str = "## Promises and their tests";
/// Minimum number of promises of a page; fewer mean that the table was not found.
const MIN_PROMISES: usize = 25;

/// A promise with the names of its tests.
#[derive(Debug, PartialEq)]
struct Promise {
    words: String,
    tests: Vec<String>,
}

/// Parses the rows of the table below [`HEADING`].
fn promises(page: &str) -> Vec<Promise> {
    let section = page.split_once(HEADING).map_or("", |(_, section)| section);
    let section = section.split("\n## ").next().unwrap_or_default();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    let cells = rows.filter_map(|row| row.rsplit_once(" | "));
    // The first row names the columns.
    cells.skip(1).map(|(words, tests)| Promise { words: words.to_owned(), tests: quoted(tests) }).collect()
}

/// Returns the texts in backticks of a cell.
pub(super) fn quoted(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Returns the names of the test functions in a file.
pub(super) fn tests_of(text: &str) -> Vec<String> {
    let (mut names, mut is_test) = (Vec::new(), false);
    for line in text.lines().map(str::trim_start) {
        let function = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ");
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            is_test = true;
        } else if let Some(function) = function {
            let name = function.split(['(', '<']).next().unwrap_or_default();
            names.extend(is_test.then(|| name.to_owned()));
            is_test = false;
        }
    }
    names
}

#[test]
fn every_promise_names_tests_that_exist() {
    let tests: BTreeSet<String> =
        rust_sources().unwrap().iter().flat_map(|file| tests_of(&file.text)).collect();
    let mut wrong = Vec::new();
    for page in PAGES {
        let promises = promises(&fs::read_to_string(workspace_root().join(page)).unwrap());
        assert!(promises.len() >= MIN_PROMISES, "{page} has {} promises below `{HEADING}`", promises.len());
        for Promise { words, tests: named } in promises {
            if named.is_empty() {
                wrong.push(format!("{page}: no test holds \"{words}\""));
            }
            let missing = named.iter().filter(|name| !tests.contains(*name));
            wrong.extend(missing.map(|name| format!("{page}: there is no test `{name}`, for \"{words}\"")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn rows_are_read_with_their_tests_and_only_below_the_heading() {
    let page = format!(
        "| not | `this` |\n\n{HEADING}\n\nWords.\n\n| promise | held by |\n|---|---|\n| A `b` holds | `one`, `two` |\n\
         | Nothing holds this | none |\n\n## Next\n| nor | `that` |\n"
    );
    let promise = |words: &str, tests: &[&str]| Promise {
        words: words.to_owned(),
        tests: tests.iter().map(|&name| name.to_owned()).collect(),
    };
    assert_eq!(
        promises(&page),
        [promise("A `b` holds", &["one", "two"]), promise("Nothing holds this", &[])]
    );
    assert_eq!(promises("| a | `b` |"), []);
}

#[test]
fn a_function_is_a_test_only_below_its_attribute() {
    let text = "#[test]\nfn one() {}\nfn helps() {}\n#[tokio::test(flavor = \"multi_thread\")]\n#[cfg(unix)]\nasync fn two() {}\n\
                    #[test]\n    fn three(bytes in any::<u8>()) {}\n// fn four()";
    assert_eq!(tests_of(text), ["one", "two", "three"]);
}
