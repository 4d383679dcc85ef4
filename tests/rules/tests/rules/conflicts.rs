//! Rule of refused combinations: only one table has them and their texts, and rules about devices read the
//! device that was chosen for the job.

use std::collections::BTreeSet;

use regex::Regex;
use rlt_rules::rust_sources;

/// Folder of the table of conflicts.
const TABLE: &str = "crds/src/conflicts";
/// Files of the table that have texts of errors.
const TEXTS: [&str; 2] = ["crds/src/conflicts/rows.rs", "crds/src/conflicts/validation.rs"];
/// Code that may read the device of a manifest: it chooses the device, plans a job whose device is replaced,
/// or exports a checkpoint of an earlier release, which records no compute dtype.
const DEVICE_READERS: [&str; 5] = [
    "crds/plan/src/",
    "crds/src/validate.rs",
    "operator/cli/src/plan/",
    "trainer/src/commands/export.rs",
    "trainer/src/run/setup/device.rs",
];
/// Checks of a model, which get the chosen device.
const CHECKS: &str = "crds/plan/src/model_check.rs";

fn is_test(path: &str) -> bool {
    path.starts_with("tests/") || path.contains("/tests/") || path.ends_with("tests.rs")
}

/// Yields the lines of a file that are not comments, with their numbers.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.lines().enumerate().map(|(idx, line)| (idx + 1, line));
    lines.filter(|(_, line)| !line.trim_start().starts_with("//"))
}

#[test]
fn the_texts_of_the_table_of_conflicts_are_nowhere_else() {
    let sources = rust_sources().unwrap();
    let literal = Regex::new(r#""([^"\\\n]{25,})""#).unwrap();
    let of_table = sources.iter().filter(|file| TEXTS.contains(&file.path.as_str()));
    let found = of_table.flat_map(|file| literal.captures_iter(&file.text));
    let texts: BTreeSet<&str> = found.map(|found| found.get(1).unwrap().as_str()).collect();
    let texts: Vec<&str> = texts.into_iter().filter(|text| text.contains(' ')).collect();
    assert!(texts.len() > 40, "{} texts of the table", texts.len());
    let mut repeated = Vec::new();
    for file in sources.iter().filter(|file| !is_test(&file.path) && !file.path.starts_with(TABLE)) {
        for (number, line) in code(&file.text) {
            if let Some(text) = texts.iter().find(|text| line.contains(**text)) {
                repeated.push(format!("{}:{number}: {text:?}", file.path));
            }
        }
    }
    assert!(repeated.is_empty(), "take these from rlt_api::conflicts:\n{}", repeated.join("\n"));
}

/// A manifest may leave the device open. A rule that reads the manifest's device would then miss the device
/// that is chosen later.
#[test]
fn the_device_of_a_manifest_is_read_only_where_it_is_chosen_or_planned() {
    let read = Regex::new(r"\bspec(\(\))?\.workers\.device([).,;]|\s*[={]|\s*!=)").unwrap();
    let (mut wrong, mut num_reads) = (Vec::new(), 0);
    for file in rust_sources().unwrap().iter().filter(|file| !is_test(&file.path)) {
        let has_machine = file.path.starts_with("trainer/");
        assert!(!has_machine || !file.text.contains("without_machine"), "{} has a machine", file.path);
        let may_read = DEVICE_READERS.iter().any(|path| file.path.starts_with(path)) && file.path != CHECKS;
        for (number, line) in code(&file.text).filter(|(_, line)| read.is_match(line)) {
            num_reads += 1;
            if !may_read {
                wrong.push(format!("{}:{number}: {}", file.path, line.trim()));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "use the chosen device (rlt_api::conflicts::ChosenDevice):\n{}",
        wrong.join("\n")
    );
    assert!(num_reads > 10, "{num_reads} reads are found");
}
