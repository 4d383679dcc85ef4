//! Tests of `rlctl run`: how the trainer is found and started, and which fields have no effect in a local
//! run.

use std::fs;
use std::path::Path;

use crate::{ARITHMETIC, bad_manifest, fake_trainer, rlctl, stderr, stdout};

#[test]
fn a_local_run_names_what_was_set_for_a_cluster_only() {
    let folder = tempfile::tempdir().unwrap();
    let trainer = fake_trainer(folder.path(), 0);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let with = |sections: &str| {
        let path = folder.path().join("job.yaml");
        fs::write(&path, fs::read_to_string(root.join(ARITHMETIC)).unwrap() + sections).unwrap();
        stderr(&rlctl(&["run", path.to_str().unwrap(), "--trainer", trainer.to_str().unwrap()]))
    };
    let note = with(
        "  workers: {device: Cpu, nodeSelector: {a: b}, resources: {memory: 1Gi}}\n  \
         runPolicy: {suspend: true, activeDeadlineSeconds: 9, retries: {io: 9}}\n",
    );
    assert_eq!(
        note,
        "note: without effect here, on a cluster only: spec.workers.resources.memory, spec.workers.nodeSelector, \
         spec.runPolicy.suspend, spec.runPolicy.retries.io\n"
    );
    assert_eq!(with("  workers: {threads: 2}\n  runPolicy: {activeDeadlineSeconds: 9}\n"), "");
    let several = "  workers: {count: 2, device: Cpu, peerTimeoutSeconds: 9}\n  \
                   runPolicy: {terminationGracePeriodSeconds: 9, retries: {io: 9, crash: 9, failure: 9, checkpoint: 9}}\n";
    assert_eq!(with(several), "", "a launcher watches them here, too");
}

#[test]
fn run_executes_the_trainer_and_exits_with_its_code() {
    let folder = tempfile::tempdir().unwrap();
    let trainer = fake_trainer(folder.path(), 80);
    let more = ["--overwrite", "--send-env", "A", "--send-env", "B"];
    let output = rlctl(&[&["run", ARITHMETIC, "--trainer", trainer.to_str().unwrap()], &more[..]].concat());
    assert_eq!(output.status.code(), Some(80));
    let expected = "launch\n--manifest\ncrds/tests/fixtures/arithmetic.yaml\n--output\nruns/arithmetic\n--overwrite\n\
                    --send-env\nA\n--send-env\nB\n";
    assert_eq!(stdout(&output), expected);
}

#[test]
fn run_starts_nothing_for_a_bad_manifest() {
    let folder = tempfile::tempdir().unwrap();
    let trainer = fake_trainer(folder.path(), 0);
    let path = bad_manifest(folder.path());
    let output = rlctl(&["run", path.to_str().unwrap(), "--trainer", trainer.to_str().unwrap()]);
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(2), ""));
    assert!(stderr(&output).contains("numKvHeads must divide numHeads"), "{}", stderr(&output));
}

#[test]
fn a_missing_trainer_is_answered_with_the_places_searched() {
    let output = rlctl(&["run", ARITHMETIC, "--trainer", "/nowhere/rlt-trainer"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stderr(&output), "rlctl: find the trainer: /nowhere/rlt-trainer is not a file\n");
}
