//! TensorBoard itself reads a run's event files.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

use crate::job::{Place, tiny_with};

/// Prints `{tag: [[step, value, seconds since 1970]]}` of an events folder.
const READER: &str = "
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1], size_guidance={'scalars': 0}).Reload()
scalars = {tag: [[e.step, e.value, e.wall_time] for e in events.Scalars(tag)] for tag in events.Tags()['scalars']}
print(json.dumps(scalars))
";

type Scalars = BTreeMap<String, Vec<(u64, f64, f64)>>;

fn read(folder: &Path) -> Option<Scalars> {
    let mut python = rlt_tests::TENSORBOARD.python()?;
    let ended = python.args(["-c", READER]).arg(folder).output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    Some(serde_json::from_slice(&ended.stdout).unwrap())
}

/// Scalars of `metrics.jsonl`: every number of every line, in the order of the file.
fn logged(place: &Place) -> Scalars {
    let mut scalars = Scalars::new();
    for line in place.metrics() {
        let is_cold_start = line["training/phase"] == 0;
        let (step, time) = (line["step"].as_u64().unwrap(), line["timestamp"].as_f64().unwrap());
        let own = ["step", "training/phase", "timestamp"];
        for (name, value) in
            line.as_object().unwrap().iter().filter(|(name, _)| !own.contains(&name.as_str()))
        {
            let Some(value) = value.as_f64() else { continue };
            let tag = if is_cold_start { format!("cold_start/{name}") } else { name.clone() };
            scalars.entry(tag).or_default().push((step, value, time));
        }
    }
    scalars
}

#[test]
fn tensorboard_reads_every_metric_of_every_step_also_of_a_run_that_was_resumed() {
    let changes = |steps: u32| -> Value {
        tiny_with(json!({
            "algorithm": { "coldStart": { "steps": 2, "batchSize": 4 } },
            "training": { "steps": steps, "evaluateBefore": true }
        }))
    };
    let place = Place::new();
    place.train(&changes(2)).expect(0, &[]);
    place.train(&changes(4)).expect(0, &["after step 2"]);
    let Some(read) = read(&place.run("events")) else { return };
    let logged = logged(&place);
    assert!(read.keys().eq(logged.keys()), "{:?} {:?}", read.keys(), logged.keys());
    assert_eq!(logged["critic/rewards/mean"].len(), 4);
    assert!(logged.contains_key("cold_start/sft/loss"));
    for (tag, logged) in &logged {
        assert_eq!(read[tag].len(), logged.len(), "{tag}");
        for (read, logged) in read[tag].iter().zip(logged) {
            // A scalar of an event file is an f32.
            let error = (read.1 - logged.1).abs() / logged.1.abs().max(1e-30);
            assert!(read.0 == logged.0 && read.2 == logged.2 && error < 1e-6, "{tag}: {read:?} {logged:?}");
        }
    }
}
