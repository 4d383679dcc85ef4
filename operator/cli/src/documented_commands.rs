//! Tests that the command line parses every command in the documentation's shell blocks.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Parser as _;

use crate::args::Args;

/// Returns the pages of `docs/`, the README and the CONTRIBUTING guide.
fn pages() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let files = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let docs = files.filter(|path| path.extension().is_some_and(|ending| ending == "md"));
    let paths = docs.chain(["README.md", "CONTRIBUTING.md"].map(|name| root.join(name)));
    paths.map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

/// Returns the arguments of a line that calls `rlctl`, up to a comment or another command. The line may set
/// variables before the call.
fn arguments(line: &str) -> Option<Vec<&str>> {
    let mut words = line.split_whitespace().skip_while(|word| word.contains('=')).peekable();
    (*words.peek()? == "rlctl").then_some(())?;
    Some(words.take_while(|word| !word.starts_with(['#', '|', ';', '>', '<', '&'])).collect())
}

#[test]
fn every_command_of_a_shell_block_is_understood() {
    let mut num_commands = 0;
    for (page, text) in pages() {
        let blocks = text.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
        for line in blocks.flat_map(str::lines) {
            for call in line.split("; ").filter_map(arguments) {
                let parsed = Args::try_parse_from(&call);
                assert!(parsed.is_ok(), "{}: {line}: {}", page.display(), parsed.unwrap_err());
                num_commands += 1;
            }
        }
    }
    assert!(num_commands > 25, "commands are found: {num_commands}");
}
