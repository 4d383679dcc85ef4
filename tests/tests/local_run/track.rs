//! Trackers of a whole run, and `rlctl track`, which sends the files of any run.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use rlt_tests::{HeldPort, MLFLOW, MlflowServer, PythonPackage, TRACKIO, TrackioServer, WANDB};
use serde_json::{Value, json};

use crate::job::{Ended, Place, tiny_with};

/// The runs of an experiment, read by MLflow's own client: status, identity, number of parameters, and
/// `{metric: [[step, value]]}`.
const MLFLOW_READER: &str = "
import json, sys
from mlflow.tracking import MlflowClient
client = MlflowClient(sys.argv[1])
experiment = client.get_experiment_by_name(sys.argv[2])
runs = client.search_runs([experiment.experiment_id])
print(json.dumps([{
    'name': run.info.run_name, 'status': run.info.status, 'params': run.data.params,
    'metrics': {k: [[m.step, m.value] for m in client.get_metric_history(run.info.run_id, k)] for k in run.data.metrics}
} for run in runs]))
";

/// Prints the number of histories in the one `.wandb` file below a folder, and whether it has an exit.
const WANDB_READER: &str = "
import glob, json, sys
import wandb
wandb._assert_is_internal_process = True
from wandb.sdk.internal.datastore import DataStore
from wandb.proto.wandb_internal_pb2 import Record
[path] = glob.glob(sys.argv[1] + '/offline-run-*/run-*.wandb')
store = DataStore()
store.open_for_scan(path)
kinds = []
while (data := store.scan_data()) is not None:
    kinds.append(Record.FromString(data).WhichOneof('record_type'))
print(json.dumps([kinds.count('history'), kinds[-1]]))
";

fn read(package: PythonPackage, program: &str, arguments: &[&str]) -> Option<Value> {
    let ended = package.python()?.args(["-c", program]).args(arguments).output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    Some(serde_json::from_slice(&ended.stdout).unwrap())
}

fn rlctl_track(run: &Path, arguments: &[&str]) -> Ended {
    let mut command = Command::new(rlt_tests::fresh_binary("rlctl"));
    Ended::of(command.arg("track").arg(run).args(arguments).output().unwrap())
}

/// `{metric: [[step, value]]}` of the training.
fn logged(place: &Place) -> BTreeMap<String, Vec<(u64, f64)>> {
    let mut logged = BTreeMap::<String, Vec<_>>::new();
    for line in place.metrics() {
        for (name, value) in line.as_object().unwrap() {
            if ["step", "training/phase", "timestamp"].contains(&name.as_str()) {
                continue;
            }
            let value = value.as_f64().unwrap();
            let step = line["step"].as_u64().unwrap();
            logged.entry(name.clone()).or_default().push((step, value));
        }
    }
    logged
}

/// Renames metrics by the names that MLflow allows.
fn by_mlflows_names(logged: BTreeMap<String, Vec<(u64, f64)>>) -> BTreeMap<String, Vec<(u64, f64)>> {
    logged.into_iter().map(|(name, points)| (name.replace('@', "_at_"), points)).collect()
}

#[test]
fn a_run_logs_to_mlflow_and_what_it_could_not_send_is_sent_later() {
    let folder = tempfile::tempdir().unwrap();
    let port = HeldPort::new().unwrap();
    let url = format!("http://127.0.0.1:{}", port.number());
    let job = |steps: u32| {
        let mlflow = json!({ "url": url, "experiment": "math", "runName": "first" });
        tiny_with(json!({ "tracking": { "mlflow": mlflow }, "training": { "steps": steps } }))
    };
    let place = Place::new();
    // While the server is down, the run succeeds and reports the loss at its end.
    place.train(&job(2)).expect(0, &["tracker mlflow lost 3 records: 3 steps were not logged", &url]);
    let Some(server) = MlflowServer::start(folder.path(), &port) else { return };
    // A resumed run also sends earlier steps.
    place.train(&job(4)).expect(0, &["after step 2"]);
    let runs = || read(MLFLOW, MLFLOW_READER, &[&server.url(), "math"]).unwrap();
    let [run] = runs().as_array().unwrap().clone().try_into().unwrap();
    assert_eq!((&run["name"], &run["status"]), (&json!("first"), &json!("FINISHED")));
    assert_eq!(run["params"]["rollout.samplesPerPrompt"], "4");
    let metrics: BTreeMap<String, Vec<(u64, f64)>> = serde_json::from_value(run["metrics"].clone()).unwrap();
    assert_eq!(metrics, by_mlflows_names(logged(&place)));
    assert_eq!(metrics["critic/rewards/mean"].len(), 4);

    // A replay finds the run, which lacks nothing.
    let to = format!("mlflow={}", server.url());
    let sent = rlctl_track(&place.run(""), &["--to", &to, "--project", "math"]);
    sent.expect(0, &["has 5 steps", "complete"]);
    assert_eq!(runs(), json!([run]));
}

/// The runs of a project in the store of a server, read by Trackio's own code: name, a setting, and
/// `{metric: [[step, value]]}`.
const TRACKIO_READER: &str = "
import json, os, sys
os.environ['TRACKIO_DIR'] = sys.argv[1]
import trackio
from trackio.sqlite_storage import SQLiteStorage
def metrics(run):
    found = {}
    for log in SQLiteStorage.get_logs(run.project, run.name, run_id=run.id):
        for name in log.keys() - {'step', 'timestamp'}:
            found.setdefault(name, []).append([log['step'], log[name]])
    return found
print(json.dumps([{
    'name': run.name, 'samples': run.config['rollout.samplesPerPrompt'], 'metrics': metrics(run)
} for run in trackio.Api().runs(sys.argv[2])]))
";

#[test]
fn a_run_logs_to_trackio_and_what_it_could_not_send_is_sent_later() {
    let folder = tempfile::tempdir().unwrap();
    let port = HeldPort::new().unwrap();
    let url = format!("http://127.0.0.1:{}", port.number());
    let job = |steps: u32| {
        let trackio = json!({ "url": url, "project": "math", "runName": "first" });
        tiny_with(json!({ "tracking": { "trackio": trackio }, "training": { "steps": steps } }))
    };
    let token = || vec![("TRACKIO_WRITE_TOKEN", TrackioServer::WRITE_TOKEN.to_owned())];
    let place = Place::new();
    // While the server is down, the run succeeds and reports the loss at its end.
    let allowed = ["--send-env", "TRACKIO_WRITE_TOKEN"];
    let train =
        |steps| Ended::of(place.start_with(&job(steps), &allowed, token()).wait_with_output().unwrap());
    train(2).expect(0, &["tracker trackio lost 3 records: 3 steps were not logged", &url]);
    let Some(server) = TrackioServer::start(folder.path(), &port) else { return };
    // A resumed run also sends earlier steps.
    train(4).expect(0, &["after step 2"]);
    let store = folder.path().join("trackio");
    let runs = || read(TRACKIO, TRACKIO_READER, &[store.to_str().unwrap(), "math"]).unwrap();
    let [run] = runs().as_array().unwrap().clone().try_into().unwrap();
    assert_eq!((&run["name"], &run["samples"]), (&json!("first"), &json!("4")));
    let metrics: BTreeMap<String, Vec<(u64, f64)>> = serde_json::from_value(run["metrics"].clone()).unwrap();
    assert_eq!(metrics, logged(&place));
    assert_eq!(metrics["critic/rewards/mean"].len(), 4);

    // A replay finds the run, which lacks nothing.
    let to = format!("trackio={}", server.url());
    let mut track = Command::new(rlt_tests::fresh_binary("rlctl"));
    track.envs(token()).arg("track").arg(place.run(""));
    track.args(["--to", &to, "--project", "math", "--name", "first"]);
    Ended::of(track.output().unwrap()).expect(0, &["has 5 steps", "complete"]);
    assert_eq!(runs(), json!([run]));
}

#[test]
fn a_run_that_tracked_nothing_is_sent_from_its_files() {
    let place = Place::new();
    place.train(&tiny_with(json!({ "training": { "steps": 3 } }))).expect(0, &[]);
    let (wandb, events) = (place.file("wandb"), place.file("events"));
    let to =
        [("wandb", &wandb), ("tensorboard", &events)].map(|(name, at)| format!("{name}={}", at.display()));
    let send = || rlctl_track(&place.run(""), &["--to", &to[0], "--to", &to[1], "--name", "again"]);
    send().expect(0, &["has 4 steps", "complete"]);
    // A second replay replaces the files and does not append to them.
    send().expect(0, &[]);
    assert_eq!(std::fs::read_dir(&wandb).unwrap().count(), 1);
    assert_eq!(std::fs::read_dir(events.join("again")).unwrap().count(), 1);
    if let Some(read) = read(WANDB, WANDB_READER, &[wandb.to_str().unwrap()]) {
        assert_eq!(read, json!([4, "exit"]));
    }
    rlctl_track(&place.file("nothing"), &["--to", &to[0]]).expect(1, &["is no run folder", "nothing"]);
    let words = ["comet=x", "mlflow=URL", "trackio=URL", "wandb=DIR", "tensorboard=DIR"];
    rlctl_track(&place.run(""), &["--to", "comet=x"]).expect(2, &words);
}

#[test]
fn a_run_leaves_an_offline_run_of_wandb_that_is_continued_when_it_resumes() {
    let place = Place::new();
    let job = |steps: u32| {
        let wandb = json!({ "project": "math" });
        tiny_with(json!({ "tracking": { "wandb": wandb }, "training": { "steps": steps } }))
    };
    place.train(&job(2)).expect(0, &[]);
    place.train(&job(3)).expect(0, &["after step 2"]);
    let folder = place.run("wandb");
    let Some(read) = read(WANDB, WANDB_READER, &[folder.to_str().unwrap()]) else { return };
    assert_eq!(read, json!([4, "exit"]), "the evaluation before, and three steps");
}
