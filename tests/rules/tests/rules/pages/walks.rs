//! Rule of ARCHITECTURE.md: its length, the paths that it names, and its walks. A walk follows a prompt, a
//! resource or a weight through the code in numbered steps, each with the files in which it happens.

use std::fs;

use regex::Regex;
use rlt_rules::workspace_root;

/// Headings of the walks.
const WALKS: [&str; 3] = ["## Walk of a prompt", "## Walk of a resource", "## Walk of a weight"];
/// Minimum number of steps of a walk; fewer mean that the list was not found.
const MIN_STEPS: usize = 10;
/// Maximum number of words of the page.
const MAX_WORDS: usize = 2400;
/// Folders to which paths of the page may be relative.
const BASES: [&str; 3] = ["", "trainer/src", "operator/src"];

/// A walk: the folder to which its paths are relative, and the text of each step.
#[derive(Debug, PartialEq)]
struct Walk {
    base: String,
    steps: Vec<String>,
}

/// Parses the walk below a heading. A step is a line with the next number, and the indented lines after it.
fn walk(page: &str, heading: &str) -> Walk {
    let section = page.split_once(heading).map_or("", |(_, section)| section);
    let section = section.split("\n## ").next().unwrap_or_default();
    let base = Regex::new("Paths are relative to `([^`]+)`").unwrap();
    let base = base.captures(section).map(|found| found[1].to_owned()).unwrap_or_default();
    let mut steps: Vec<String> = Vec::new();
    for line in section.lines() {
        if let Some(words) = line.strip_prefix(&format!("{}. ", steps.len() + 1)) {
            steps.push(words.to_owned());
        } else if let (Some(words), Some(step)) = (line.strip_prefix("   "), steps.last_mut()) {
            step.extend([" ", words]);
        }
    }
    Walk { base, steps }
}

/// Returns the paths of source files in backticks.
fn files(step: &str) -> Vec<&str> {
    step.split('`').skip(1).step_by(2).filter(|name| name.ends_with(".rs")).collect()
}

fn read_page() -> String {
    fs::read_to_string(workspace_root().join("ARCHITECTURE.md")).unwrap()
}

#[test]
fn the_page_is_short_enough_to_be_read_in_one_go() {
    let num_words = read_page().split_whitespace().count();
    assert!(num_words <= MAX_WORDS, "ARCHITECTURE.md has {num_words} words: delete what says nothing");
}

#[test]
fn every_path_of_the_page_exists() {
    let (root, page) = (workspace_root(), read_page());
    let path = Regex::new(r"`([\w.-]+(?:/[\w.-]+)*/|[\w.-]+(?:/[\w.-]+)+)`").unwrap();
    let paths: Vec<&str> = path.captures_iter(&page).map(|found| found.get(1).unwrap().as_str()).collect();
    let exists = |path: &str| BASES.iter().any(|base| root.join(base).join(path).exists());
    let missing: Vec<&&str> = paths.iter().filter(|path| !exists(path)).collect();
    assert!(missing.is_empty(), "there is no {missing:?}");
    assert!(paths.len() > 100, "paths are found: {}", paths.len());
}

#[test]
fn every_step_of_a_walk_names_files_that_exist() {
    let (root, page) = (workspace_root(), read_page());
    let mut wrong = Vec::new();
    for heading in WALKS {
        let Walk { base, steps } = walk(&page, heading);
        assert!(
            root.join(&base).is_dir() && !base.is_empty(),
            "{heading}: paths begin from a folder: {base:?}"
        );
        assert!(steps.len() >= MIN_STEPS, "{heading} has {} numbered steps", steps.len());
        for (idx, step) in steps.iter().enumerate() {
            let files = files(step);
            if files.is_empty() {
                wrong.push(format!("{heading}, step {}: no file", idx + 1));
            }
            let is_missing =
                |file: &&&str| !root.join(&base).join(file).is_file() && !root.join(file).is_file();
            let missing = files.iter().filter(is_missing);
            wrong.extend(missing.map(|file| format!("{heading}, step {}: there is no {file}", idx + 1)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_step_goes_on_in_indented_lines_and_ends_with_its_section() {
    let page = "## Other\n1. `no.rs`\n\n## Walk\n\nPaths are relative to `a/src/`, or to the root.\n\n1. `one.rs` and\n   \
                `b/two.rs` in `c/`.\n2. Nothing.\n\nWords.\n\n## Next\n3. `no.rs`\n";
    let Walk { base, steps } = walk(page, "## Walk");
    assert_eq!(base, "a/src/");
    assert_eq!(steps, ["`one.rs` and `b/two.rs` in `c/`.", "Nothing."]);
    assert_eq!(
        steps.iter().map(|step| files(step)).collect::<Vec<_>>(),
        [vec!["one.rs", "b/two.rs"], vec![]]
    );
}
