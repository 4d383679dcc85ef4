//! `rlctl` as a user calls it.

use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::job::{ENDLESS, Ended, Place, signal, tiny, tiny_with};

fn rlctl(arguments: &[&str]) -> Ended {
    let mut command = Command::new(rlt_tests::fresh_binary("rlctl"));
    Ended::of(command.args(arguments).current_dir(rlt_tests::workspace_root()).output().unwrap())
}

#[test]
fn run_trains_with_the_trainer_beside_it() {
    let place = Place::new();
    let manifest = place.write(&tiny_with(json!({ "training": { "steps": 1 } })));
    let output = place.run("");
    rlctl(&["run", manifest.to_str().unwrap(), "--output", output.to_str().unwrap()]).expect(0, &[]);
    assert!(place.run("result.json").exists());
}

#[test]
fn run_hands_on_signals_and_exit_codes() {
    let place = Place::new();
    let manifest = place.write(&tiny_with(json!({ "training": { "steps": ENDLESS } })));
    let child = Command::new(rlt_tests::fresh_binary("rlctl"))
        .arg("run")
        .arg(manifest)
        .arg("--output")
        .arg(place.run(""))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    place.wait_for_steps(1);
    signal(&child, "TERM");
    Ended::of(child.wait_with_output().unwrap()).expect(80, &[]);
    assert!(fs::read_dir(place.run("checkpoints")).unwrap().count() > 0);
}

#[test]
fn run_refuses_a_wrong_manifest_and_a_missing_trainer() {
    let place = Place::new();
    let wrong = place.write(&tiny_with(json!({ "training": { "stepz": 1 } })));
    rlctl(&["run", wrong.to_str().unwrap()]).expect(2, &["spec.training.stepz"]);
    let right = place.write(&tiny());
    rlctl(&["run", right.to_str().unwrap(), "--trainer", "/nowhere/trainer"])
        .expect(1, &["/nowhere/trainer"]);
}

#[test]
fn plan_shows_batches_and_memory_for_people_and_programs() {
    let place = Place::new();
    let manifest = place.write(&tiny());
    rlctl(&["plan", "-f", manifest.to_str().unwrap()])
        .expect(0, &["samples of a step", "Memory of one rank"]);
    let ended = rlctl(&["plan", "-f", manifest.to_str().unwrap(), "-o", "json"]).expect(0, &[]);
    let plan: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(plan["spec"]["training"]["promptsPerUpdate"], 2, "{plan:#}");
    assert_eq!(plan["batch"]["samplesPerStep"], 8, "{plan:#}");
}

#[test]
fn every_example_is_valid_and_can_be_planned() {
    let examples = rlt_tests::workspace_root().join("examples");
    let folders: Vec<_> = fs::read_dir(examples).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(folders.iter().any(|folder| folder.ends_with("quickstart")));
    // A workflow of Argo contains its job instead of a `job.yaml`.
    for job in folders.iter().map(|folder| folder.join("job.yaml")).filter(|job| job.exists()) {
        rlctl(&["validate", "-f", job.to_str().unwrap()]).expect(0, &["valid"]);
        rlctl(&["plan", "-f", job.to_str().unwrap()]).expect(0, &[]);
    }
}

#[test]
fn validate_answers_about_every_file() {
    let (good, bad) = (Place::new(), Place::new());
    let good_path = good.write(&tiny());
    let bad_path = bad.write(&tiny_with(json!({ "rollout": { "topP": 3, "minP": 2 } })));
    rlctl(&["validate", "-f", good_path.to_str().unwrap(), bad_path.to_str().unwrap()])
        .expect(2, &[": valid", "2 problems", "spec.rollout.topP", "spec.rollout.minP"]);
}

#[test]
fn a_manifest_from_standard_input_is_validated_planned_and_run() {
    let place = Place::new();
    let manifest = tiny_with(json!({ "training": { "steps": 1 } })).to_string();
    let output = place.run("");
    let output = output.to_str().unwrap();
    for arguments in [&["validate", "-f", "-"][..], &["plan", "-f", "-"], &["run", "-", "--output", output]] {
        let mut command = Command::new(rlt_tests::fresh_binary("rlctl"));
        let mut child = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(manifest.as_bytes()).unwrap();
        Ended::of(child.wait_with_output().unwrap()).expect(0, &[]);
    }
    assert!(place.run("result.json").exists());
}

#[test]
fn validate_goes_on_past_files_that_cannot_be_read() {
    let place = Place::new();
    let good = place.write(&tiny());
    let (folder, missing) = (place.file(""), place.file("nothing.yaml"));
    let files = [&folder, &missing, &good].map(|path| path.to_str().unwrap());
    let ended = rlctl(&[&["validate", "-f"][..], &files].concat())
        .expect(2, &["job.yaml: valid", "warning: neither spec.workers.storage", "nothing.yaml: can"]);
    assert_eq!(ended.stdout.lines().count(), 4, "{}", ended.stdout);
    let ended = rlctl(&[&["validate", "-o", "json", "-f"][..], &files].concat()).expect(2, &[]);
    let verdicts: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(verdicts[1]["valid"], false);
    assert!(verdicts[1]["unreadable"].as_str().unwrap().contains("No such file"), "{verdicts}");
}

#[test]
fn a_second_document_in_a_file_is_named_as_such() {
    let place = Place::new();
    let path = place.file("two.yaml");
    fs::write(&path, format!("{:#}\n---\nkind: ConfigMap\n", tiny())).unwrap();
    rlctl(&["validate", "-f", path.to_str().unwrap()]).expect(2, &["another document begins here"]);
}

#[test]
fn a_report_is_drawn_of_runs_only() {
    let place = Place::new();
    let mut command = Command::new(rlt_tests::fresh_binary("rlt-trainer"));
    let ended = command.arg("report").arg(place.file("")).output().unwrap();
    Ended::of(ended).expect(1, &["no run folder"]);
    place.train(&tiny_with(json!({ "training": { "steps": 1 } }))).expect(0, &[]);
    fs::remove_file(place.run("report.html")).unwrap();
    let mut command = Command::new(rlt_tests::fresh_binary("rlt-trainer"));
    Ended::of(command.arg("report").arg(place.run("")).output().unwrap()).expect(0, &["report.html"]);
    assert!(place.run("report.html").exists());
}

#[test]
fn convert_writes_a_manifest_and_lists_settings_without_equivalent() {
    let place = Place::new();
    let [script, manifest, server] = ["run_grpo.sh", "job.yaml", "server.py"].map(|name| place.file(name));
    let text = "N=${N:-1}\nDATA=(data.train_files=/data/math.parquet)\npython3 -m verl.trainer.main_ppo \"${DATA[@]}\" \\\n\
        algorithm.adv_estimator=grpo actor_rollout_ref.model.path=org/base actor_rollout_ref.rollout.n=8 \\\n\
        trainer.nnodes=$N custom_reward_function.path=mine.py trainer.wonderful=1\n";
    fs::write(&script, text).unwrap();
    let of = |path: &std::path::Path| path.to_str().unwrap().to_owned();
    let arguments = [&of(&script), "--set", "N=2", "-o", &of(&manifest), "--reward-server", &of(&server)];
    rlctl(&[&["convert"][..], &arguments].concat()).expect(0, &["1 without an equal", "trainer.wonderful=1"]);
    rlctl(&["validate", "-f", &of(&manifest)]).expect(0, &["valid"]);
    let manifest = fs::read_to_string(manifest).unwrap();
    assert!(manifest.contains("name: grpo") && manifest.contains("count: 2"), "{manifest}");
    assert!(fs::read_to_string(server).unwrap().contains("\"mine.py\""));
    rlctl(&["convert", "--", "a=1"]).expect(1, &["--from"]);
}

#[test]
fn convert_reads_the_settings_file_that_flags_name() {
    let place = Place::new();
    let [settings, manifest] = ["own.yaml", "pairs.yaml"].map(|name| place.file(name));
    fs::write(&settings, "beta: 0.3\n").unwrap();
    let [settings, output] = [&settings, &manifest].map(|path| path.to_str().unwrap());
    let options = ["convert", "--from", "trl", "--trainer", "dpo", "-o", output, "--", "--config", settings];
    let flags = ["--model_name_or_path", "org/base", "--dataset_name", "org/pairs"];
    rlctl(&[&options[..], &flags].concat()).expect(0, &["3 settings"]);
    assert!(fs::read_to_string(&manifest).unwrap().contains("beta: 0.3"));
}
