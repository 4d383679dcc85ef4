//! Rule of the examples in CONTRIBUTING.md: their code is that of files which are compiled and tested, and
//! outside of these files only a list names the additions.

use std::collections::BTreeSet;
use std::fs;

use regex::Regex;
use rlt_rules::{SourceFile, rust_sources, workspace_root};

use super::promises::{quoted, tests_of};

/// Heading of the section with the examples.
const HEADING: &str = "## Examples of additions";
/// Minimum number of examples; fewer mean that the table was not found.
const NUM_EXAMPLES: usize = 5;
/// Folder of the model families, each in a file.
const FAMILIES: &str = "crds/models/src/families/";
/// Declaration of a family in its file, which other files of the folder do not have.
const FAMILY_START: &str = "Definition = Definition {";
/// Maximum number of lines in the file of a family.
const MAX_FAMILY_LINES: usize = 70;

/// A row of the table of examples.
#[derive(Debug, PartialEq)]
struct Example {
    /// Type or constant that is added.
    name: String,
    /// Path of the file with the full addition.
    file: String,
    /// Path of the file with the list that registers the addition; `None` if only a test uses it.
    list: Option<String>,
    /// Names of the tests that run the addition.
    tests: Vec<String>,
}

/// Code of an example, with the path of its file.
#[derive(Debug, PartialEq)]
struct Block {
    file: String,
    code: String,
}

/// Returns the section of CONTRIBUTING.md with the examples.
fn section() -> String {
    let page = fs::read_to_string(workspace_root().join("CONTRIBUTING.md")).unwrap();
    let section = page.split_once(HEADING).map_or("", |(_, section)| section);
    section.split("\n## ").next().unwrap_or_default().to_owned()
}

/// Parses the rows of a section's table.
fn examples(section: &str) -> Vec<Example> {
    let rows = section.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    // The first row names the columns.
    let cells = rows.skip(1).map(|row| row.split(" | ").map(quoted).collect::<Vec<_>>());
    let example = |cells: Vec<Vec<String>>| Example {
        name: cells[0][0].clone(),
        file: cells[1][0].clone(),
        list: cells[2].first().cloned(),
        tests: cells[3].clone(),
    };
    cells.map(example).collect()
}

/// Returns the Rust blocks of a section. The first line of each has the path of its file.
fn blocks(section: &str) -> Vec<Block> {
    let texts = section.split("```rust,ignore\n// ").skip(1).map(|rest| rest.split_once("\n```").unwrap().0);
    let block = |text: &str| {
        let (file, code) = text.split_once('\n').unwrap();
        Block { file: file.to_owned(), code: code.to_owned() }
    };
    texts.map(block).collect()
}

/// Returns the code of a file without comments and one-line text literals.
fn code_of(text: &str) -> String {
    let literal = Regex::new(r#""[^"]*""#).unwrap();
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    code.map(|line| literal.replace_all(line, "") + "\n").collect()
}

/// Whether the product, or the file of an example itself, names its addition.
fn names_it(source: &SourceFile, example: &Example) -> bool {
    let is_own = source.path == example.file;
    let text = if is_own { Some(source.text.as_str()) } else { source.production_code() };
    let Some(text) = text.filter(|text| text.contains(&example.name)) else { return false };
    Regex::new(&format!(r"\b{}\b", example.name)).unwrap().is_match(&code_of(text))
}

#[test]
fn the_code_of_an_example_is_that_of_its_file() {
    let section = section();
    let (examples, blocks) = (examples(&section), blocks(&section));
    assert_eq!(examples.len(), NUM_EXAMPLES, "{examples:?}");
    let files = examples.iter().map(|example| &example.file);
    assert!(
        files.eq(blocks.iter().map(|block| &block.file)),
        "each example shows code of its file, in order"
    );
    for Block { file, code } in &blocks {
        let text = fs::read_to_string(workspace_root().join(file)).unwrap();
        assert!(text.contains(code), "CONTRIBUTING.md shows other code than {file} has");
        assert!(code.lines().count() >= 15, "{file}: {code}");
    }
}

#[test]
fn an_example_is_one_file_and_a_list_that_names_it() {
    let sources = rust_sources().unwrap();
    for example in examples(&section()) {
        let named = sources.iter().filter(|source| names_it(source, &example));
        let named: BTreeSet<&str> = named.map(|source| source.path.as_str()).collect();
        let expected: BTreeSet<&str> =
            [Some(example.file.as_str()), example.list.as_deref()].into_iter().flatten().collect();
        assert_eq!(named, expected, "{}", example.name);
    }
}

#[test]
fn every_example_names_tests_that_exist() {
    let tests: BTreeSet<String> =
        rust_sources().unwrap().iter().flat_map(|file| tests_of(&file.text)).collect();
    for Example { name, tests: named, .. } in examples(&section()) {
        assert!(!named.is_empty(), "{name}");
        let missing: Vec<&String> = named.iter().filter(|test| !tests.contains(*test)).collect();
        assert!(missing.is_empty(), "{name}: there are no tests {missing:?}");
    }
}

#[test]
fn the_file_of_a_family_has_at_most_70_lines() {
    let sources = rust_sources().unwrap();
    let families = sources.iter().filter(|source| source.path.starts_with(FAMILIES));
    let families = families.filter(|source| source.text.contains(FAMILY_START));
    let lengths: Vec<usize> = families.map(|source| source.text.lines().count()).collect();
    assert!(lengths.len() > 20, "files of families are found: {}", lengths.len());
    assert!(lengths.iter().all(|length| *length <= MAX_FAMILY_LINES), "{lengths:?}");
}

#[test]
fn names_in_comments_and_in_texts_are_no_code() {
    assert_eq!(code_of("let a = \"Name\" | b; \n    // Name\n/// Name\n"), "let a =  | b; \n");
}

#[test]
fn rows_and_blocks_of_a_section_are_read() {
    let section = "| addition | file |\n|---|---|\n| a loss: `Name` | `a.rs` | none | `one`, `two` |\n\nWords.\n\n\
                   ```rust,ignore\n// a.rs\nfn one() {\n\n    two();\n}\n```\n";
    let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
    let example =
        Example { name: "Name".into(), file: "a.rs".into(), list: None, tests: words(&["one", "two"]) };
    assert_eq!(examples(section), [example]);
    let block = Block { file: "a.rs".into(), code: "fn one() {\n\n    two();\n}".into() };
    assert_eq!(blocks(section), [block]);
}
