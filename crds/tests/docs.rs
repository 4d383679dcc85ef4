//! Tests that the documentation names existing fields and shows valid manifests.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const REFERENCE: &str = include_str!("../../docs/reference.md");
/// Sections whose fields the pages may name without the prefix `spec.`.
const SECTIONS: [&str; 10] = [
    "algorithm",
    "checkpoint",
    "data",
    "model",
    "rewards",
    "rollout",
    "runPolicy",
    "tracking",
    "training",
    "workers",
];
/// Names of files and weights that look like fields.
const NO_FIELDS: [&str; 4] = ["data.json", "model.json", "model.safetensors", "model.visual"];

/// Returns all pages except for the generated one.
fn pages() -> Vec<(PathBuf, String)> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let files = fs::read_dir(&docs).unwrap().map(|entry| entry.unwrap().path());
    let pages = files.filter(|path| path.extension().is_some_and(|ending| ending == "md"));
    let mut pages: Vec<PathBuf> = pages.filter(|path| !path.ends_with("reference.md")).collect();
    pages.extend(["../README.md", "../ARCHITECTURE.md"].map(|page| docs.join(page)));
    pages.into_iter().map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

/// Every `spec.` path in backticks, up to the first character that a path does not have.
fn paths(text: &str) -> BTreeSet<&str> {
    let is_path = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '[' | ']');
    let of_quote = |quote: &'_ str| quote.find(|c| !is_path(c)).unwrap_or(quote.len());
    let quotes = text.split('`').skip(1).step_by(2).filter(|quote| quote.starts_with("spec."));
    quotes.map(|quote| quote[..of_quote(quote)].trim_end_matches('.')).collect()
}

#[test]
fn every_field_that_a_page_names_exists() {
    let known = paths(REFERENCE);
    assert!(known.len() > 200, "the reference lists all fields");
    let mut num_named = 0;
    for (page, text) in pages() {
        for path in paths(&text) {
            let exists =
                known.contains(path) || known.iter().any(|known| known.starts_with(&format!("{path}.")));
            assert!(exists, "{}: there is no {path}", page.display());
            num_named += 1;
        }
    }
    assert!(num_named > 100, "pages name fields: {num_named}");
}

/// Every path in backticks that begins with a section, without the brackets of lists.
fn short_paths(text: &str) -> BTreeSet<String> {
    let is_end = |c: char| !c.is_ascii_alphanumeric() && !matches!(c, '.' | '[' | ']');
    let path = |quote: &str| {
        let (path, rest) = quote.split_at(quote.find(is_end).unwrap_or(quote.len()));
        let (section, _) = path.split_once('.')?;
        let is_code = rest.starts_with(['_', '(', '*', '=']);
        let is_field = SECTIONS.contains(&section) && !NO_FIELDS.iter().any(|name| path.starts_with(name));
        (is_field && !is_code).then(|| path.trim_end_matches('.').replace("[]", ""))
    };
    text.split('`').skip(1).step_by(2).filter(|quote| !quote.contains('\n')).filter_map(path).collect()
}

/// Pages about other projects also have those projects' names.
#[test]
fn every_field_that_a_page_names_without_spec_exists() {
    let known: BTreeSet<String> =
        paths(REFERENCE).iter().map(|path| path.trim_start_matches("spec.").replace("[]", "")).collect();
    let is_ours = |page: &Path| !page.file_name().unwrap().to_string_lossy().starts_with("from-");
    let mut num_named = 0;
    for (page, text) in pages().into_iter().filter(|(page, _)| is_ours(page)) {
        for path in short_paths(&text) {
            let below = format!("{path}.");
            let exists = known.contains(&path) || known.iter().any(|known| known.starts_with(&below));
            assert!(exists, "{}: there is no spec.{path}", page.display());
            num_named += 1;
        }
    }
    assert!(num_named > 100, "pages name fields: {num_named}");
}

#[test]
fn fields_without_spec_are_told_from_names_of_other_kinds() {
    let text =
        "`workers.mesh.tp` `rewards.functions[].kind: Model`, `data.json`, `data.next_prompts(n)`, `kind`";
    let expected = ["rewards.functions.kind", "workers.mesh.tp"].map(str::to_owned);
    assert_eq!(short_paths(text), BTreeSet::from(expected));
}

#[test]
fn every_whole_manifest_of_a_page_is_valid() {
    let mut num_valid = 0;
    for (page, text) in pages() {
        for block in text.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next()) {
            if block.starts_with("apiVersion: rltraining.dev") {
                let problems = rlt_api::validate(block).err().map(|problems| format!("{problems:?}"));
                assert_eq!(problems, None, "{}", page.display());
                num_valid += 1;
            }
        }
    }
    assert!(num_valid > 0);
}
