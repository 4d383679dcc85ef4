//! Tests of the options of `rlctl convert`. Tests of the conversion itself are in `operator/convert`.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use crate::{rlctl, stderr, stdout};

/// Path of a job of KubeRay, relative to the root of the workspace.
const RAY_JOB: &str = "operator/convert/tests/fixtures/ray-job.yaml";

#[test]
fn an_unknown_trainer_is_refused() {
    for (project, trainer, expected) in [
        ("trl", "SFT", "--trainer: expected grpo, sft, dpo"),
        ("verl", "grpo", "--trainer: expected main_ppo, sft_trainer for verl"),
        ("open-instruct", "sft", "--trainer: expected grpo_fast, finetune"),
    ] {
        let output = rlctl(&["convert", "--from", project, "--trainer", trainer, "--", "a=1"]);
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
    }
}

#[test]
fn a_manifest_of_another_operator_is_converted_without_a_project() {
    let output =
        rlctl(&["convert", RAY_JOB, "--set", "MODEL_PATH=org/own", "--", "data.train_batch_size=64"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    for expected in ["name: qwen-grpo\n", "repo: org/own\n", "promptsPerStep: 64\n", "nodeAffinity:\n"] {
        assert!(stdout(&output).contains(expected), "{expected}: {}", stdout(&output));
    }
    assert!(stderr(&output).contains("RayJob.workerGroupSpecs[0].template.ray-worker.image"));
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut command = Command::new(env!("CARGO_BIN_EXE_rlctl"));
    let piped =
        command.args(["convert", "-"]).stdin(File::open(root.join(RAY_JOB)).unwrap()).output().unwrap();
    assert_eq!(piped.status.code(), Some(0), "{}", stderr(&piped));
    assert!(stdout(&piped).contains("name: qwen-grpo\n"), "{}", stdout(&piped));
}

#[test]
fn a_manifest_of_another_kind_and_a_project_for_a_manifest_are_refused() {
    let output = rlctl(&["convert", "--from", "verl", RAY_JOB]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("--from, --trainer: expected none"), "{}", stderr(&output));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("job.yaml");
    fs::write(&path, "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: a}\n").unwrap();
    let output = rlctl(&["convert", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("kind PyTorchJob (kubeflow.org/v1)"), "{}", stderr(&output));
}
