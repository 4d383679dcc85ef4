//! Rule of the pages in `docs/`, in the root and of the chart: their links, anchors, paths and commands
//! exist, and the site's table of contents lists every page. The tests need no mdBook.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use regex::Regex;
use rlt_rules::workspace_root;

/// Documentation outside of `docs/`; the changelog names old paths, so only its links are checked.
const OTHER_PAGES: [&str; 5] =
    ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "charts/rl-operator/README.md"];
/// Pages of the site that are files of the root. Their relative links would be wrong from `docs/`.
const INCLUDED: [(&str, &str); 2] =
    [("docs/architecture.md", "ARCHITECTURE.md"), ("docs/contributing.md", "CONTRIBUTING.md")];

/// Reads the text of every page, by its path from the workspace's root.
pub(super) fn pages() -> BTreeMap<String, String> {
    let root = workspace_root();
    let files = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().file_name());
    let names = files.map(|name| name.into_string().unwrap()).filter(|name| name.ends_with(".md"));
    let paths = names.map(|name| format!("docs/{name}")).chain(OTHER_PAGES.map(str::to_owned));
    paths.map(|path| (path.clone(), fs::read_to_string(root.join(&path)).unwrap())).collect()
}

/// Returns a page's text outside of fenced blocks, and its fenced blocks of a language.
fn prose_and_blocks(text: &str, language: &str) -> (String, String) {
    let (mut prose, mut blocks, mut fence) = (String::new(), String::new(), None);
    for line in text.lines() {
        let mark = line.trim_start().strip_prefix("```");
        match (fence, mark) {
            (None, Some(name)) => fence = Some(name.trim()),
            (Some(_), Some(_)) => fence = None,
            (None, None) => prose.extend([line, "\n"]),
            (Some(name), None) if name == language => blocks.extend([line, "\n"]),
            (Some(_), None) => {}
        }
    }
    (prose, blocks)
}

/// Returns the texts in backticks outside of fenced blocks.
fn quoted(text: &str) -> Vec<String> {
    let code = Regex::new("`([^`]+)`").unwrap();
    code.captures_iter(&prose_and_blocks(text, "").0).map(|found| found[1].to_owned()).collect()
}

/// Returns the targets of all links and pictures outside of code.
fn links(text: &str) -> Vec<String> {
    let prose = Regex::new("`[^`]*`").unwrap().replace_all(&prose_and_blocks(text, "").0, "").into_owned();
    let link = Regex::new(r"\]\(([^)\s]+)\)").unwrap();
    link.captures_iter(&prose).map(|found| found[1].to_owned()).collect()
}

/// Returns the anchors of a page's headings, by the rule that forges and mdBook share: lower case; letters,
/// digits, `-` and `_` are kept; blanks become `-`; a repeated heading gets a number.
fn anchors(text: &str) -> BTreeSet<String> {
    let (prose, _) = prose_and_blocks(text, "");
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let headings = prose.lines().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| {
        let kept = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        let base: String = kept.chars().filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect();
        let count = seen.entry(base.clone()).or_default();
        *count += 1;
        if *count == 1 { base } else { format!("{base}-{}", *count - 1) }
    };
    headings.map(anchor).collect()
}

/// Resolves a link of `page` to a path from the workspace's root.
fn resolve(page: &str, target: &str) -> String {
    let mut path = Path::new(page).parent().unwrap().to_path_buf();
    for component in Path::new(target).components() {
        match component {
            Component::ParentDir => assert!(path.pop(), "{page}: {target} leads out of the repository"),
            Component::CurDir => {}
            other => path.push(other),
        }
    }
    path.to_string_lossy().into_owned()
}

#[test]
fn every_link_leads_to_a_file_and_every_anchor_to_a_heading() {
    let (root, pages) = (workspace_root(), pages());
    let (mut wrong, mut num_links, mut num_anchors) = (Vec::new(), 0, 0);
    for (page, text) in &pages {
        for link in links(text).iter().filter(|link| !link.starts_with("http")) {
            let (file, anchor) = link.split_once('#').map_or((link.as_str(), None), |(f, a)| (f, Some(a)));
            let path = if file.is_empty() { page.clone() } else { resolve(page, file) };
            num_links += 1;
            let leaves_site = page.starts_with("docs/") && !path.starts_with("docs/");
            if !root.join(&path).exists() {
                wrong.push(format!("{page}: {link}: there is no {path}"));
            } else if leaves_site && (path.ends_with(".md") || root.join(&path).is_dir()) {
                wrong.push(format!("{page}: {link}: the site has only files beside it, and no Markdown"));
            } else if let Some(anchor) = anchor {
                num_anchors += 1;
                let target = fs::read_to_string(root.join(&path)).unwrap();
                if !anchors(&target).contains(anchor) {
                    wrong.push(format!("{page}: {link}: no heading of {path} has this anchor"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(num_links > 100 && num_anchors > 10, "links are read: {num_links}, {num_anchors} with anchors");
}

#[test]
fn the_table_of_contents_has_every_page_once() {
    let pages = pages();
    let mut listed = links(&pages["docs/SUMMARY.md"]);
    listed.sort();
    let files =
        pages.keys().filter_map(|path| path.strip_prefix("docs/")).filter(|name| *name != "SUMMARY.md");
    assert_eq!(listed, files.map(str::to_owned).collect::<Vec<_>>());
    for (page, source) in INCLUDED {
        assert_eq!(pages[page], format!("{{{{#include ../{source}}}}}\n"), "{page}");
        let relative: Vec<_> = links(&pages[source]).into_iter().filter(|l| !l.starts_with("http")).collect();
        assert!(relative.is_empty(), "{source} is a page of the site: {relative:?} would be broken there");
    }
}

/// Lists every file and folder of the checkout, from its root.
fn checkout() -> Vec<String> {
    let root = workspace_root();
    let (mut found, mut folders) = (Vec::new(), vec![root.clone()]);
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()) {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if name.starts_with('.') || ["target", "runs"].contains(&name.as_str()) {
                continue;
            }
            found.push(path.strip_prefix(&root).unwrap().to_string_lossy().into_owned());
            if path.is_dir() {
                folders.push(path);
            }
        }
    }
    found
}

/// A page may give a path relative to the folder of a package (`roles/learner.rs`).
#[test]
fn every_source_path_that_a_page_names_exists() {
    let known = checkout();
    let path = Regex::new(r"^[\w.-]+(/[\w.-]+)+/?$").unwrap();
    let top = Regex::new("^(charts|crds|docs|examples|operator|tests|trainer)/").unwrap();
    let (mut wrong, mut num_paths) = (Vec::new(), 0);
    for (page, text) in pages().iter().filter(|(page, _)| *page != "CHANGELOG.md") {
        let (_, shell) = prose_and_blocks(text, "sh");
        let words = shell.split_whitespace().map(str::to_owned).filter(|word| top.is_match(word));
        let names = quoted(text).into_iter().filter(|name| top.is_match(name) || name.ends_with(".rs"));
        for name in names.chain(words).filter(|name| path.is_match(name)) {
            let ending = format!("/{}", name.trim_end_matches('/'));
            num_paths += 1;
            if !known.iter().any(|known| format!("/{known}").ends_with(&ending)) {
                wrong.push(format!("{page}: {name}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(num_paths > 60, "paths are found: {num_paths}");
}

#[test]
fn the_page_of_examples_has_every_manifest_of_examples() {
    let pages = pages();
    let is_example = |path: &String| path.starts_with("examples/") && path.ends_with(".yaml");
    let manifests: Vec<String> = checkout().into_iter().filter(is_example).collect();
    assert!(manifests.len() > 20, "examples are found: {}", manifests.len());
    let linked = links(&pages["docs/examples.md"]);
    let is_missing = |path: &&String| !linked.contains(&format!("../{path}"));
    let missing: Vec<&String> = manifests.iter().filter(is_missing).collect();
    assert!(missing.is_empty(), "docs/examples.md has no link to {missing:?}");
}

#[test]
fn every_make_target_that_a_page_names_exists() {
    let makefile = fs::read_to_string(workspace_root().join("Makefile")).unwrap();
    let is_target = |name: &str| makefile.lines().any(|line| line.starts_with(&format!("{name}:")));
    let command = Regex::new("^make ([a-z-]+)").unwrap();
    let mut num_named = 0;
    for (page, text) in pages().iter().filter(|(page, _)| *page != "CHANGELOG.md") {
        let (_, shell) = prose_and_blocks(text, "sh");
        for line in quoted(text).iter().map(String::as_str).chain(shell.lines()) {
            if let Some(found) = command.captures(line) {
                assert!(is_target(&found[1]), "{page}: there is no `make {}`", &found[1]);
                num_named += 1;
            }
        }
    }
    assert!(num_named > 10, "targets are found: {num_named}");
}

#[test]
fn the_page_of_operations_has_every_metric_and_alert_of_the_operator() {
    let pages = pages();
    let page = &pages["docs/operations.md"];
    let read = |path: &str| fs::read_to_string(workspace_root().join(path)).unwrap();
    let metrics = |text: &str| {
        let quoted = text.split('`').filter(|name| name.starts_with("rlt_operator_"));
        quoted.map(str::to_owned).collect::<BTreeSet<String>>()
    };
    let documented = metrics(&read("operator/src/metrics.rs"));
    assert!(documented.len() > 8, "metrics are found: {documented:?}");
    assert_eq!(metrics(page), documented);
    let alerts = read("charts/rl-operator/files/alerts.yaml");
    let alerts: Vec<&str> = alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(!alerts.is_empty());
    for alert in alerts {
        assert!(page.contains(&format!("| `{alert}` |")), "docs/operations.md has no row of {alert}");
    }
}

/// Browsers load pictures as separate images, which have no size unless they state one.
#[test]
fn every_picture_is_used_and_has_a_size_and_colours_for_dark_pages() {
    let folder = workspace_root().join("docs/pictures");
    let used: BTreeSet<String> = pages().values().flat_map(|text| links(text)).collect();
    let files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(!files.is_empty());
    for file in files {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        assert!(used.contains(&format!("pictures/{name}")), "{name} is on no page");
        let picture = fs::read_to_string(&file).unwrap();
        for needed in [" width=", " height=", " viewBox=", "prefers-color-scheme: dark", "<title>"] {
            assert!(picture.contains(needed), "{name} has no {needed}");
        }
    }
}
