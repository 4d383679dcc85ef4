//! A device with too little memory: the run ends, and its error names phase, amounts and fields to change.

use std::fs;
use std::process::Command;

use rlt_devices::{Counts, StandIn};
use rlt_tests::{fresh_binary, tiny_job};
use serde_json::json;

/// Exit code of a job that this machine cannot run.
const BAD_CONFIG: i32 = 78;

/// Trains the tiny job on a device with `num_bytes` bytes. Returns the exit code, the error output and the
/// counts.
fn train(num_bytes: u64) -> (Option<i32>, String, Counts) {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let mut manifest = tiny_job();
    manifest["spec"]["workers"] = json!({ "device": "Cuda" });
    fs::write(file("job.yaml"), manifest.to_string()).unwrap();
    let mut command = Command::new(fresh_binary("rlt-trainer"));
    command.args(["launch", "--manifest"]).arg(file("job.yaml")).arg("--output").arg(file("run"));
    command.envs(StandIn::build().unwrap().env());
    command.env("RLT_STAND_IN_MEMORY", num_bytes.to_string()).env("RLT_STAND_IN_REPORT", file("counts.json"));
    let output = command.output().unwrap();
    let said =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    (output.status.code(), said, Counts::read(&file("counts.json")).unwrap_or_default())
}

#[test]
fn a_device_that_is_too_small_ends_the_run_with_phase_amounts_and_fields() {
    let (code, said, counts) = train(1 << 30);
    assert_eq!(code, Some(0), "{said}");
    let peak = counts.peak_bytes[0];
    for num_bytes in [peak * 9 / 10, peak / 50] {
        let (code, said, _) = train(num_bytes);
        assert_eq!(code, Some(BAD_CONFIG), "{said}");
        let error = said.lines().find(|line| line.contains("ran out of memory in phase `")).unwrap_or(&said);
        for part in ["were asked for", "were free", "spec."] {
            assert!(error.contains(part), "{part} in {error}");
        }
    }
}
