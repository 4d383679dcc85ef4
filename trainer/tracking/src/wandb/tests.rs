//! W&B's own reader reads the files back.

use serde_json::json;

use super::*;
use crate::Metrics;

/// Prints every record of the one `.wandb` file below a folder as JSON.
const READER: &str = "
import glob, json, sys
import wandb
wandb._assert_is_internal_process = True
from wandb.sdk.internal.datastore import DataStore
from wandb.proto.wandb_internal_pb2 import Record
from google.protobuf.json_format import MessageToDict
[path] = glob.glob(sys.argv[1] + '/offline-run-*/run-*.wandb')
store = DataStore()
store.open_for_scan(path)
while (data := store.scan_data()) is not None:
    print(json.dumps(MessageToDict(Record.FromString(data), preserving_proto_field_name=True)))
";

fn read(folder: &Path) -> Option<Vec<Value>> {
    let mut python = rlt_tests::WANDB.python()?;
    let ended = python.args(["-c", READER]).arg(folder).output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    let lines = String::from_utf8(ended.stdout).unwrap();
    Some(lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

fn step(stage: Stage, step: u64, values: &[(&str, f64)]) -> StepMetrics {
    let values: Metrics = values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
    StepMetrics { stage, step, timestamp: 1.7e9 + step as f64, values }
}

fn run() -> RunDescription {
    // A configuration longer than two blocks, so that a record is split.
    let prompt = "x".repeat(70_000);
    RunDescription { name: "job".into(), spec: json!({ "training": { "steps": 3 }, "prompt": prompt }) }
}

/// `{name: value}` of a history or summary.
fn values(items: &Value) -> Value {
    let item = |item: &Value| {
        let value = serde_json::from_str::<Value>(item["value_json"].as_str().unwrap()).unwrap();
        (item["nested_key"][0].as_str().unwrap().to_owned(), value)
    };
    items.as_array().unwrap().iter().map(item).collect::<serde_json::Map<_, _>>().into()
}

#[test]
fn wandb_reads_configuration_steps_and_end() {
    let folder = tempfile::tempdir().unwrap();
    let options = WandbOptions { project: Some("p".into()), entity: Some("team".into()), run_name: None };
    let history = [step(Stage::ColdStart, 1, &[("sft/loss", 2.5)]), step(Stage::ColdStart, 2, &[])];
    let mut tracker = OfflineRun::open(folder.path(), &options, run(), &history.to_vec().into()).unwrap();
    tracker.log_step(&step(Stage::Training, 0, &[("val-core/reward/mean", 0.25)])).unwrap();
    // Several blocks of small records, so that some end near a block's end.
    for idx in 1..=400 {
        let values = [("critic/rewards/mean", f64::from(idx) / 8.0), ("actor/grad_norm", f64::NAN)];
        tracker.log_step(&step(Stage::Training, idx as u64, &values)).unwrap();
    }
    tracker.end(RunEnd::Complete).unwrap();
    let Some(records) = read(folder.path()) else { return };
    assert!(records.iter().enumerate().all(|(idx, record)| record["num"] == *(idx + 1).to_string()));
    assert!(records[0]["header"]["version_info"]["producer"].as_str().unwrap().starts_with("rlt-tracking"));
    let of_run = &records[1]["run"];
    assert_eq!(
        (&of_run["project"], &of_run["entity"], &of_run["display_name"]),
        (&json!("p"), &json!("team"), &json!("job"))
    );
    assert_eq!(of_run["start_time"], "2023-11-14T22:13:21Z");
    let config: Vec<_> =
        of_run["config"]["update"].as_array().unwrap().iter().map(|item| &item["value_json"]).collect();
    assert_eq!(config[0], r#"{"steps":3}"#);
    assert_eq!(config[1].as_str().unwrap().len(), 70_002);

    let steps: Vec<&Value> = records.iter().filter_map(|record| record.get("history")).collect();
    assert_eq!(steps.len(), 403);
    assert_eq!(values(&steps[0]["item"])["cold_start/sft/loss"], 2.5);
    assert_eq!(
        (&steps[2]["step"]["num"], values(&steps[2]["item"])["val-core/reward/mean"].as_f64()),
        (&json!("3"), Some(0.25))
    );
    let last = values(&steps[402]["item"]);
    assert_eq!(
        (&last["critic/rewards/mean"], &last["_step"], &last["_runtime"]),
        (&json!(50.0), &json!(403), &json!(399.0))
    );
    assert!(last.get("actor/grad_norm").is_none(), "{last}");
    let summaries: Vec<&Value> = records.iter().filter_map(|record| record.get("summary")).collect();
    assert_eq!(values(&summaries[402]["update"]), last);
    assert_eq!(records.last().unwrap()["exit"]["runtime"], 399);
}

#[test]
fn a_resumed_run_is_the_same_run_and_a_fresh_one_replaces_it() {
    let folder = tempfile::tempdir().unwrap();
    let history = [step(Stage::Training, 1, &[]), step(Stage::Training, 2, &[])];
    let files = || -> Vec<String> {
        let entries = fs::read_dir(folder.path()).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    let open = |history: &[StepMetrics]| {
        OfflineRun::open_alone(folder.path(), &WandbOptions::default(), run(), &history.to_vec().into())
    };
    open(&history).unwrap();
    let first = files();
    assert!(first[0].starts_with("offline-run-20231114_221321-"), "{first:?}");
    open(&history[..1]).unwrap();
    assert_eq!(files(), first);
    let later = StepMetrics { timestamp: 1.8e9, ..history[0].clone() };
    open(&[later]).unwrap();
    assert_eq!(files().len(), 1);
    assert_ne!(files(), first);
}
