//! Whole runs with Python in the sandbox: reward functions, and unit tests of the model's code.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::{Value, json};

use crate::job::{Ended, Place};
use crate::reward_servers::{judged_by, learned, without_votes};

/// Returns the function of the examples with an interpreter; `None` if the interpreter cannot be fetched.
fn python(place: &Place) -> Option<Value> {
    let module = rlt_tests::python_module()?;
    let path = place.file("reward.py");
    std::fs::copy(rlt_tests::workspace_root().join("examples/rewards/reward.py"), &path).unwrap();
    Some(json!({
        "name": "right", "kind": "Python", "python": { "path": path },
        "wasm": { "path": module, "fuel": 100_000_000, "memoryMib": 128 },
    }))
}

#[test]
fn a_function_in_python_gives_the_run_that_the_trainer_gives_itself() {
    let (place, own) = (Place::new(), Place::new());
    let Some(function) = python(&place) else { return };
    place.train(&judged_by(function, json!({}))).expect(0, &[]);
    own.train(&judged_by(json!({ "name": "right", "kind": "Exact" }), json!({}))).expect(0, &[]);
    let (mut got, mut expected) = (learned(&place), learned(&own));
    got.iter_mut().chain(&mut expected).for_each(without_votes);
    assert_eq!(got, expected);
}

#[test]
fn the_example_of_a_function_in_python_runs_as_its_first_lines_say() {
    let Some(module) = rlt_tests::python_module() else { return };
    let (place, root) = (Place::new(), rlt_tests::workspace_root());
    std::fs::create_dir_all(place.file("examples/rewards")).unwrap();
    let example = root.join("examples/rewards");
    std::fs::copy(example.join("reward.py"), place.file("examples/rewards/reward.py")).unwrap();
    std::os::unix::fs::symlink(module, place.file("python.wasm")).unwrap();
    let mut command = Command::new(rlt_tests::fresh_binary("rlctl"));
    command.arg("run").arg(example.join("python.yaml")).current_dir(place.file(""));
    Ended::of(command.output().unwrap()).expect(0, &[]);
    let metrics = std::fs::read_to_string(place.file("runs/rewards-python/metrics.jsonl")).unwrap();
    let lines = metrics.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let judged: Vec<f64> = lines.filter_map(|line| line["reward/num_ok"].as_f64()).collect();
    assert_eq!(judged, [64.0; 10], "every sample of every step");
}

#[test]
fn a_file_that_does_not_load_is_refused_before_the_first_step() {
    let place = Place::new();
    let Some(mut function) = python(&place) else { return };
    let file = place.file("reward.py");
    std::fs::write(&file, "import numpy\n").unwrap();
    let ended = place.train(&judged_by(function.clone(), json!({})));
    assert_ne!(ended.code, Some(0));
    assert!(ended.stderr.contains("ModuleNotFoundError: No module named 'numpy'"), "{}", ended.stderr);
    function["wasm"]["path"] = json!(file);
    let ended = Place::new().train(&judged_by(function, json!({})));
    assert!(ended.code != Some(0) && ended.stderr.contains("compile the module"), "{}", ended.stderr);
}

/// Rewards completions of the tiny model by tests that every program passes if it defines a number. Invalid
/// Python and endless loops fail.
#[test]
fn code_is_judged_by_its_tests_and_every_sample_has_a_status() {
    let Some(module) = rlt_tests::python_module() else { return };
    let tests = json!({
        "name": "tests", "kind": "Code", "code": { "maxTests": 1, "runSeconds": 300 },
        "wasm": { "path": module, "fuel": 500_000_000, "memoryMib": 64, "timeoutSeconds": 300.0 },
    });
    let place = Place::new();
    place.train(&judged_by(tests, json!({}))).expect(0, &[]);
    let mut seen = BTreeMap::new();
    for line in place.completions() {
        let status = line["reward_status"].as_str().unwrap().to_owned();
        let text = line["completion"].as_str().unwrap();
        let is_number =
            !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
        assert!(!is_number || status == "ok", "{line}");
        assert!(!text.starts_with('=') || status == "wrong", "{line}");
        *seen.entry(status).or_insert(0) += 1;
    }
    assert!(seen.contains_key("ok") && seen.contains_key("wrong") && seen.len() == 2, "{seen:?}");
}
