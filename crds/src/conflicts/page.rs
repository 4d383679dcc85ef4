//! Page of the documentation with the table of conflicts.

use std::fmt::Write as _;

use super::{CONFLICTS, Conflict, Fact};

const HEAD: &str = "\
# What cannot be combined

<!-- Written by `cargo run -p rlt-api --features kube --bin crdgen`; a test fails when it is stale. -->

A job with any of these combinations is refused before it starts: by the API server and `rlctl validate` where the
manifest shows it, else by `rlctl plan` and by the trainer, once the model's files are read and the device is chosen.
Everything else can be combined, as far as degrees divide the model's sizes ([fields](reference.md)).

| setting | cannot be combined with | reason | change |
|---|---|---|---|
";

/// Formats all conflicts as a page in Markdown, grouped by setting.
pub fn support_markdown() -> String {
    let mut text = String::from(HEAD);
    let of_fact = |fact: Fact| CONFLICTS.iter().filter(move |conflict| conflict.fact == fact);
    for conflict in Fact::ALL.iter().copied().flat_map(of_fact) {
        let with: Vec<_> = conflict.with.iter().map(|fact| fact.words()).collect();
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} |",
            conflict.fact.words(),
            with.join(" and "),
            conflict.reason(),
            change(conflict)
        );
    }
    text
}

/// Describes which field to change, and to which values.
fn change(conflict: &Conflict) -> String {
    let field = conflict.fact.field();
    match conflict.expected() {
        Some(expected) => format!("`{field}`: {expected}"),
        None => format!("remove `{field}`, or the other setting"),
    }
}
