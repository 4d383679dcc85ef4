//! Tests of the output of `rlctl validate`: problems with their lines, and warnings. Tests of the rules
//! themselves are in `crds`.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::{ARITHMETIC, bad_manifest, fake_trainer, rlctl, stderr, stdout};

#[test]
fn a_valid_manifest_ends_with_0() {
    let output = rlctl(&["validate", "-f", ARITHMETIC]);
    assert_eq!(output.status.code(), Some(0));
    assert!(
        stdout(&output).starts_with("crds/tests/fixtures/arithmetic.yaml: valid\n"),
        "{}",
        stdout(&output)
    );
}

#[test]
fn a_job_without_storage_is_valid_with_a_warning() {
    const LOST: &str = "neither spec.workers.storage nor spec.checkpoint.uri is set: on a cluster the checkpoints, the \
                        metrics and the exported model are lost with the pod";
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("job.yaml");
    let job = path.to_str().unwrap();
    for (more, is_lost) in [
        ("", true),
        ("  workers: {storage: {claimName: runs}}\n", false),
        ("  workers: {storage: {size: 1Gi}}\n", false),
        ("    uri: s3://bucket/run\n", false),
    ] {
        fs::write(&path, fs::read_to_string(root.join(ARITHMETIC)).unwrap() + more).unwrap();
        let validated = rlctl(&["validate", "-f", job]);
        let warned = if is_lost { format!("  {job}: warning: {LOST}\n") } else { String::new() };
        assert_eq!(stdout(&validated), format!("{job}: valid\n{warned}"));
        assert_eq!(validated.status.code(), Some(0));
        let expected = if is_lost { json!([LOST]) } else { json!([]) };
        let report: Value =
            serde_json::from_str(&stdout(&rlctl(&["validate", "-o", "json", "-f", job]))).unwrap();
        assert_eq!((&report[0]["valid"], &report[0]["warnings"]), (&json!(true), &expected));
        let planned = stdout(&rlctl(&["plan", "-f", job]));
        assert_eq!(planned.ends_with(&format!("\nwarning: {LOST}\n")), is_lost, "{planned}");
        let plan: Value = serde_json::from_str(&stdout(&rlctl(&["plan", "-f", job, "-o", "json"]))).unwrap();
        assert_eq!(plan["warnings"], expected);
    }
}

#[test]
fn problems_are_listed_with_file_and_line_and_end_with_2() {
    let folder = tempfile::tempdir().unwrap();
    let path = bad_manifest(folder.path());
    let output = rlctl(&["validate", "-f", ARITHMETIC, path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    insta::assert_snapshot!(stdout(&output).replace(folder.path().to_str().unwrap(), "FOLDER"));
}

/// Commands print field names and values of a manifest that someone else may have written.
#[test]
fn control_characters_of_a_manifest_are_shown_as_escapes() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = tempfile::tempdir().unwrap();
    let trainer = fake_trainer(folder.path(), 0);
    let text = fs::read_to_string(root.join(ARITHMETIC)).unwrap();
    let path = folder.path().join("job\u{1b}[2J.yaml");
    let (job, trainer) = (path.to_str().unwrap(), trainer.to_str().unwrap());
    for bad in ["  \"\\e]0;title\\a\": 1\n", "  \"\\x9b2J\\u202e\": 1\n", "  model: \"\\e[2J\"\n"] {
        fs::write(&path, format!("{text}{bad}")).unwrap();
        for args in [
            &["validate", "-f", job][..],
            &["run", job, "--trainer", trainer],
            &["data", "-f", job, "--trainer", trainer],
            &["plan", "-f", job],
        ] {
            let output = rlctl(args);
            let shown = stdout(&output) + &stderr(&output);
            assert_eq!(output.status.code(), Some(2), "{shown}");
            let is_shown = |each: char| each == '\n' || !(each.is_control() || each == '\u{202e}');
            assert!(shown.chars().all(is_shown), "{args:?}: {shown:?}");
            assert!(shown.contains("\\u{1b}[2J.yaml"), "{args:?}: {shown:?}");
        }
    }
}

#[test]
fn problems_come_as_json_for_programs() {
    let folder = tempfile::tempdir().unwrap();
    let path = bad_manifest(folder.path());
    let output = rlctl(&["validate", "-o", "json", "-f", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    let verdicts: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(verdicts[0]["valid"], false);
    let problem = &verdicts[0]["problems"][0];
    assert_eq!(problem["path"], "spec.model.architecture.numKvHeads");
    assert_eq!(problem["value"], 3);
    assert_eq!(problem["allowed"], "one of 1, 2, 4");
    assert!(problem["line"].is_u64());
}
