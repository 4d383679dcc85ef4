//! The checks of a machine with a GPU, on devices of CPU memory, so that they cannot rot; and without any
//! device.

use std::process::{Command, Output};

use rlt_devices::StandIn;
use rlt_tests::fresh_binary;
use serde_json::Value;

fn check(names: &[&str], variables: Vec<(String, String)>) -> (Output, Vec<Value>) {
    let mut command = Command::new(fresh_binary("rlt-trainer"));
    let output = command.arg("gpu-check").args(names).envs(variables).output().unwrap();
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (output, lines)
}

#[test]
fn without_a_gpu_every_check_is_skipped_and_none_is_passed() {
    let (output, lines) = check(&[], Vec::new());
    assert!(output.status.success());
    assert!(lines.len() >= 6 && lines.iter().all(|line| line["status"] == "skipped"), "{lines:?}");
}

#[test]
fn operators_memory_and_trainings_pass_on_a_device() {
    let names = ["device", "operators", "memory", "training", "checkpoints"];
    let (output, lines) = check(&names, StandIn::build().unwrap().env());
    assert!(output.status.success(), "{lines:#?}");
    for name in names {
        assert!(
            lines.iter().any(|line| {
                line["name"] == name
                    && line["status"] == "passed"
                    && line["device"].as_str().is_some_and(|device| device.contains("Stand-in"))
            }),
            "{name}: {lines:#?}"
        );
    }
}

#[test]
fn a_device_that_fails_fails_its_check_and_not_the_others() {
    let mut variables = StandIn::build().unwrap().env();
    // CUDA_ERROR_LAUNCH_FAILED after the third launch.
    variables.push(("RLT_STAND_IN_FAILURE".into(), "3:719".into()));
    let (output, lines) = check(&["memory", "device"], variables);
    assert!(!output.status.success());
    assert_eq!((&lines[0]["name"], &lines[0]["status"]), (&"memory".into(), &"failed".into()), "{lines:#?}");
    assert_eq!((&lines[1]["name"], &lines[1]["status"]), (&"device".into(), &"passed".into()), "{lines:#?}");
}

#[test]
fn a_check_that_takes_too_long_is_ended_and_failed() {
    let (output, lines) = check(&["--limit", "0", "training"], StandIn::build().unwrap().env());
    assert!(!output.status.success());
    assert!(lines[0]["error"].as_str().unwrap().contains("took longer than 0 s"), "{lines:#?}");
}

#[test]
fn a_decoding_step_of_any_batch_is_one_graph_two_copies_and_nine_launches_a_layer() {
    let (output, lines) = check(&["decode"], StandIn::build().unwrap().env());
    assert!(output.status.success(), "{lines:#?}");
    let batches: Vec<_> = lines.iter().map(|line| line["batch"].as_u64()).collect();
    assert_eq!(batches, [Some(1), Some(16), Some(256)], "{lines:#?}");
    for line in &lines {
        let cost = |name: &str| line[name].as_f64().unwrap_or_else(|| panic!("{name}: {line:#}"));
        assert!((0.0..=2.0).contains(&cost("host_to_device")), "{line:#}");
        let of_one = ["device_to_host", "waits", "graph_launches"].map(cost);
        assert_eq!(of_one, [1.0; 3], "{line:#}");
        assert!((1.0..=9.0).contains(&cost("launches_per_layer")), "{line:#}");
        assert!((1.0..=12.0).contains(&cost("launches_besides")), "{line:#}");
    }
}
