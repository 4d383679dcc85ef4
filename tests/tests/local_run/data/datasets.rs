//! Runs on several data sets: of the hub, with weights, and streamed.

use std::fs;
use std::process::Command;

use rlt_tests::hub_server::{COMMIT, Files, HubServer, REPO};
use serde_json::{Value, json};

use crate::job::{Ended, Place, tiny_with};
use crate::resume::{assert_same_numbers, with_steps};

/// Returns rows for all sums with operands below ten, such as `{"q": "2+7=", "a": "09"}`.
fn sums(operator: char, apply: fn(usize, usize) -> usize) -> String {
    let pairs = (0..10).flat_map(|one| (0..=one).map(move |other| (one, other)));
    pairs
        .map(|(one, other)| {
            let row = json!({"q": format!("{one}{operator}{other}="), "a": apply(one, other).to_string()});
            format!("{row}\n")
        })
        .collect()
}

/// Returns the files of a data set of additions, with a split for training and one for evaluation.
fn dataset() -> Files {
    let additions = sums('+', |one, other| one + other);
    let rows: Vec<&str> = additions.split_inclusive('\n').collect();
    let file = |name: &str, rows: &[&str]| (name.to_owned(), rows.concat().into_bytes());
    Files::from([
        file("data/train-00000-of-00002.jsonl", &rows[..30]),
        file("data/train-00001-of-00002.jsonl", &rows[30..]),
        file("data/test-00000-of-00001.jsonl", &rows[..4]),
    ])
}

/// Changes for a mixture of three parts additions from the hub and one part subtractions from a file.
fn changes(server: &HubServer, place: &Place, more: Value) -> Value {
    let path = place.file("subtractions.jsonl");
    fs::write(&path, sums('-', |one, other| one - other)).unwrap();
    let hub = |split: &str| json!({ "repo": REPO, "endpoint": server.endpoint(), "split": split });
    let mut data = json!({
        "task": null,
        "promptKey": "q",
        "groundTruthKey": "a",
        "datasets": [
            { "hub": hub("train"), "weight": 3, "dataSource": "sum" },
            { "files": [path], "weight": 1 },
            { "hub": hub("test"), "heldOut": true },
        ],
    });
    data.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let rewards = json!({ "functions": [{ "name": "right", "kind": "MatchingCharacters" }] });
    let alphabet = json!({ "tokenizer": { "characters": "0123456789+-=" } });
    let training = json!({ "steps": 6, "evaluateEvery": 3 });
    json!({ "model": alphabet, "data": data, "rewards": rewards, "algorithm": { "coldStart": null },
            "training": training })
}

fn train(place: &Place, manifest: &Value, home: &Place) -> Ended {
    let environment = vec![("HF_HOME", home.file("hub").display().to_string())];
    Ended::of(place.start_in(manifest, environment).wait_with_output().unwrap())
}

/// Compares a run of six steps with one of three steps that is resumed for three more.
fn prolong(more: Value) {
    let server = HubServer::start_dataset(dataset()).unwrap();
    let (whole, resumed) = (Place::new(), Place::new());
    let changes = changes(&server, &whole, more);
    train(&whole, &with_steps(&changes, 6), &whole).expect(0, &[]);
    let record: Value = serde_json::from_slice(&fs::read(whole.run("data.json")).unwrap()).unwrap();
    assert_eq!((&record[0]["idx"], &record[1]["idx"]), (&json!(0), &json!(2)));
    assert!(record.as_array().unwrap().iter().all(|found| found["commit"] == COMMIT));
    train(&resumed, &with_steps(&changes, 3), &whole).expect(0, &[]);
    train(&resumed, &with_steps(&changes, 6), &whole).expect(0, &["resuming after step 3"]);
    assert_same_numbers(&whole, &resumed);
    assert!(whole.metrics().iter().any(|line| line.to_string().contains("val-core/")));
}

#[test]
fn a_mixture_of_the_hub_and_files_resumes_where_it_stopped() {
    prolong(json!({}));
}

#[test]
fn a_streamed_mixture_resumes_where_it_stopped() {
    prolong(json!({ "streaming": { "blockRows": 7 } }));
}

#[test]
fn a_run_that_goes_on_keeps_the_commit_of_its_data() {
    let server = HubServer::start_dataset(dataset()).unwrap();
    let place = Place::new();
    let changes = changes(&server, &place, json!({}));
    train(&place, &with_steps(&changes, 1), &place).expect(0, &[]);
    let path = place.run("data.json");
    let record = fs::read_to_string(&path).unwrap();
    // The record has a commit at which the branch no longer is, as if the branch had moved.
    fs::write(&path, record.replace(COMMIT, &"f".repeat(40))).unwrap();
    train(&place, &with_steps(&changes, 2), &place).expect(78, &["fetching owner/tiny at commit ffff"]);
    for unreadable in ["{", "{\"idx\": 0}", ""] {
        fs::write(&path, unreadable).unwrap();
        let named = format!("failed to read {}", path.display());
        train(&place, &with_steps(&changes, 2), &place).expect(78, &[&named, "--overwrite"]);
    }
    fs::write(&path, record).unwrap();
    train(&place, &with_steps(&changes, 2), &place).expect(0, &["resuming after step 1"]);
}

#[test]
fn data_of_the_hub_are_shown_by_data_set_with_commit_and_share() {
    let server = HubServer::start_dataset(dataset()).unwrap();
    let place = Place::new();
    let manifest = tiny_with(changes(&server, &place, json!({})));
    let shown = |arguments: &[&str]| {
        let mut command = Command::new(rlt_tests::fresh_binary("rlctl"));
        command.args(["data", "-f"]).arg(place.write(&manifest)).args(arguments);
        command.env("HF_HOME", place.file("hub"));
        Ended::of(command.output().unwrap())
    };
    let of_hub =
        format!("spec.data.datasets[0]: {REPO} split train at commit {COMMIT}; weight 3, 75.0 % of an epoch");
    let of_file = "subtractions.jsonl; weight 1, 25.0 % of an epoch";
    let counts = "4 rows: 4 kept, 0 cut, 0 left out, 0 wrong";
    let ended =
        shown(&["--rows", "2"]).expect(0, &[&of_hub, of_file, counts, "data_source \"sum\"", "  | 0+0="]);
    assert!(ended.stdout.find(&of_hub) < ended.stdout.find(of_file));
    shown(&["--rows", "2", "--held-out"])
        .expect(0, &["spec.data.datasets[2]: ", "split test", "2 rows: 2 kept"]);
}
