//! Runs on models of the hub.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rlt_tests::hub_server::{COMMIT, HubServer, REPO};
use serde_json::{Value, json};

use crate::job::{Ended, Place, small_model, tiny_with};

/// Commit of the branch once it has moved.
const MOVED: &str = "fedcba9876543210fedcba9876543210fedcba98";

/// The files of the small model.
fn files() -> BTreeMap<String, Vec<u8>> {
    let paths = fs::read_dir(small_model()).unwrap().map(|entry| entry.unwrap().path());
    let name = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
    paths.filter(|path| path.is_file()).map(|path| (name(&path), fs::read(&path).unwrap())).collect()
}

/// Makes a `command` of the trainer, whose cache of the hub is in `place`.
fn trainer(place: &Place, command: &str) -> Command {
    let mut trainer = Command::new(rlt_tests::fresh_binary("rlt-trainer"));
    trainer.arg(command).env("HF_HOME", place.file("hub"));
    trainer
}

/// Trains an adapter on the model of `server` up to `steps` steps.
fn train(place: &Place, server: &HubServer, steps: u64) -> Ended {
    let hub = json!({ "repo": REPO, "endpoint": server.endpoint() });
    let model = json!({ "architecture": null, "tokenizer": null, "hub": hub, "lora": { "rank": 2 } });
    let path = place.write(&tiny_with(json!({ "model": model, "training": { "steps": steps } })));
    let mut launch = trainer(place, "launch");
    launch.arg("--manifest").arg(path).arg("--output").arg(place.run(""));
    Ended::of(launch.output().unwrap())
}

fn document(place: &Place, name: &str) -> Value {
    serde_json::from_slice(&fs::read(place.run(name)).unwrap()).unwrap()
}

#[test]
fn a_run_on_a_model_of_the_hub_records_its_commit_and_names_it_as_the_base() {
    let server = HubServer::start(files()).unwrap();
    let place = Place::new();
    train(&place, &server, 1).expect(0, &[]);
    assert_eq!(document(&place, "model.json"), json!({ "repo": REPO, "commit": COMMIT }));
    let adapter = document(&place, "export/adapter/adapter_config.json");
    assert_eq!((&adapter["base_model_name_or_path"], &adapter["revision"]), (&json!(REPO), &json!(COMMIT)));
    let export = || Ended::of(trainer(&place, "export").arg(place.run("")).output().unwrap());
    export().expect(0, &["step 1"]);
    // The manifest's revision may have moved to another commit by now.
    for broken in ["{", r#"{"repo": "owner/name"}"#] {
        fs::write(place.run("model.json"), broken).unwrap();
        export().expect(78, &["model.json, which says at which commits the run read models"]);
    }
}

#[test]
fn a_run_continues_on_the_commit_of_its_model_though_the_branch_has_moved() {
    let has_moved = Arc::new(AtomicBool::new(false));
    let is_moved = has_moved.clone();
    let edit = move |path: &str, body: Vec<u8>| match path.ends_with("/revision/main") {
        true if is_moved.load(Ordering::Relaxed) => {
            String::from_utf8(body).unwrap().replace(COMMIT, MOVED).into_bytes()
        }
        _ => body,
    };
    let server = HubServer::start_with(files(), BTreeMap::new(), edit).unwrap();
    let place = Place::new();
    train(&place, &server, 1).expect(0, &[]);
    let num_downloads = server.downloads().len();
    has_moved.store(true, Ordering::Relaxed);
    train(&place, &server, 2).expect(0, &[]);
    assert_eq!((server.downloads().len(), place.steps().len()), (num_downloads, 2));
    assert_eq!(document(&place, "model.json"), json!({ "repo": REPO, "commit": COMMIT }));
    let another = Place::new();
    train(&another, &server, 1).expect(78, &[MOVED]);
}
