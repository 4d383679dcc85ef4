//! Rules of the repository. The tests only read its files, start no program of the product and take seconds,
//! so they run before all other tests.

#![expect(clippy::unwrap_used, reason = "a test panics where it fails")]

#[path = "rules/clocks.rs"]
mod clocks;
#[path = "rules/conflicts.rs"]
mod conflicts;
#[path = "rules/converted_scripts.rs"]
mod converted_scripts;
#[path = "rules/cycles.rs"]
mod cycles;
#[path = "rules/dependencies.rs"]
mod dependencies;
#[path = "rules/doc_comments.rs"]
mod doc_comments;
#[path = "rules/pages/docs.rs"]
mod docs;
#[path = "rules/editors.rs"]
mod editors;
#[path = "rules/every_leaf_has_a_reader.rs"]
mod every_leaf_has_a_reader;
#[path = "rules/pages/examples.rs"]
mod examples;
#[path = "rules/files.rs"]
mod files;
#[path = "rules/http.rs"]
mod http;
#[path = "rules/kernels.rs"]
mod kernels;
#[path = "rules/pages/pictures.rs"]
mod pictures;
#[path = "rules/pages/promises.rs"]
mod promises;
#[path = "rules/supply.rs"]
mod supply;
#[path = "rules/tensor_reads.rs"]
mod tensor_reads;
#[path = "rules/terminal.rs"]
mod terminal;
#[path = "rules/test_groups.rs"]
mod test_groups;
#[path = "rules/tidy.rs"]
mod tidy;
#[path = "rules/tuples.rs"]
mod tuples;
#[path = "rules/pages/walks.rs"]
mod walks;
